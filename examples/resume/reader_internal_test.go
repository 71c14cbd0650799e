package resume

import (
	"net/http"
	"testing"

	"example.com/botapi"
	"github.com/matryer/is"
)

// TestLostBeforeItIsRead has a store lose an answer before the request that started it
// has read of it: it is incomplete, and not empty.
func TestLostBeforeItIsRead(t *testing.T) {
	is := is.New(t)
	engine := New(Options{Engine: botapi.ChatEngineFunc(nil)})
	first := reader{Ref: Ref{"owner", "key", "id"}, engine: engine}
	var got error
	died := first.follow(t.Context(), func(_ string, err error) bool {
		got = err
		return false
	})
	is.True(!died)
	response, isResponse := got.(*botapi.StatusError)
	is.True(isResponse)
	is.Equal(response.Status, http.StatusBadGateway)
	is.Equal(response.Detail, "The answer is incomplete")
}
