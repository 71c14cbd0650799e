package botapi

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

func TestAKeepAliveFollowsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			yield("a", nil)
			time.Sleep(40 * time.Second)
			yield("b", nil)
		})
		server := serveInMemory(t, New(o))
		got := doAt(t, server.client(), "http://memory", "POST", "/v1/chat", chatBodyJSON("hi", true))
		is.Equal(got.body, "data: {\"content\":\"a\"}\n\n: keep-alive\n: keep-alive\ndata: {\"content\":\"b\"}\n\ndata: [DONE]\n\n")
		is.NoErr(got.err)
	})
}
