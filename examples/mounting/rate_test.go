package mounting

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
)

// An account may begin as many requests as its rate allows. One more gets a 429, which says
// when to come back, is reported with the account, and is no failed chat.
func TestLimitRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var reports []botapi.RequestReport
		chats := 0
		o := options(t, echoing, t.Output())
		o.Keys = LimitRate(botapi.CacheKeys(botapi.StaticKeys(map[string]string{apiKey: "acme", "key-of-other": "other"}), time.Hour), 0.1, 2)
		o.OnChat = func(context.Context, botapi.ChatReport) { chats++ }
		o.OnRequest = func(_ context.Context, r botapi.RequestReport) { reports = append(reports, r) }
		h := botapi.New(o)
		is.Equal(send(h, "POST", "/v1/chat", apiKey, oneAnswer).Code, 200)
		is.Equal(send(h, "GET", "/v1/bots", apiKey, "").Code, 200)
		for range 3 { // a rejected request does not count
			time.Sleep(time.Second)
			is.Equal(send(h, "POST", "/v1/chat", apiKey, oneAnswer).Code, 429)
		}
		rejected := send(h, "POST", "/v1/chat", apiKey, oneAnswer)
		is.Equal(rejected.Body.String(), `{"detail":"Too many requests for this key"}`)
		is.Equal(rejected.Header().Get("Retry-After"), "7")
		is.Equal(reports[len(reports)-1].Account, "acme")
		is.Equal(reports[len(reports)-1].Chat, nil)
		is.Equal(chats, 1)
		is.Equal(send(h, "POST", "/v1/chat", "key-of-other", oneAnswer).Code, 200)
		is.Equal(send(h, "POST", "/v1/chat", "guessed", oneAnswer).Code, 401)
		time.Sleep(7 * time.Second)
		is.Equal(send(h, "POST", "/v1/chat", apiKey, oneAnswer).Code, 200)
		is.Equal(send(h, "POST", "/v1/chat", apiKey, oneAnswer).Code, 429)
	})
}

// send calls a handler without a network.
func send(h http.Handler, method, path, key, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestLimitRateKeepsTheContract(t *testing.T) {
	keys := botapi.StaticKeys(map[string]string{apiKey: "acme"})
	botapitest.TestKeys(t, botapitest.Keys{Verifier: LimitRate(keys, 1e9, 1e6), Good: apiKey, Account: "acme", Bad: "key-of-nobody"})
}
