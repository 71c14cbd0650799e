package botapi

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

// lines joins the lines of a request's head, and ends it.
func lines(lines ...string) string { return strings.Join(lines, "\r\n") + "\r\n\r\n" }

// The pieces of the requests below.
const (
	host     = "Host: bots.example.com"
	key      = "Authorization: Bearer " + testKey
	closing  = "Connection: close"
	chatLine = "POST /v1/chat HTTP/1.1"
	listLine = "GET /v1/bots HTTP/1.1"
	echoBody = `{"bot_slug":"echo","prompt":"hi","stream":false}` // 48 bytes
)

// Request bytes in, responses out: what a client gets that, itself or by its proxy, sends
// malformed or unusual HTTP. A want is a list of responses: by name, or by the status of a
// response of net/http. Those do not have the API's form; docs/wire.md lists each. net/http
// quotes what it cannot parse: no key and no text of a chat may get into the log.
func TestHostileConnections(t *testing.T) {
	named := map[string]string{ // how the responses start
		"echoed":    `200 {"content":"hi"}`,
		"listed":    `200 [{"uid":`,
		"not-found": `404 {"detail":"Not Found"}`,
		"no-key":    `401 {"detail":"Not authenticated"}`,
		"wrong-key": `401 {"detail":"Invalid API key"}`,
		"no-body":   `422 {"detail":[{"loc":["body"],"msg":"field required"`,
		"invalid":   `422 {"detail":[{"loc":["body",`,
		"unread":    `400 {"detail":"Request body could not be read"}`,
		"stopped":   `400 {"detail":"Request body could not be read"}`, // not logged: the client has disconnected
		"too-large": `413 {"detail":"Request body too large"}`,
	}
	chat := func(header ...string) string { return lines(append([]string{chatLine, host, key}, header...)...) }
	list := func(header ...string) string { return lines(append([]string{listLine, host, key}, header...)...) }
	const chunked, chunks = "Transfer-Encoding: chunked", "30\r\n" + echoBody + "\r\n0\r\n\r\n"
	const text = "the text of a chat"
	last := list(closing) // a request that ends the connection
	lengthOfLast := fmt.Sprint("Content-Length: ", len(last))
	_, documented, _ := strings.Cut(readDocument(t, "docs/wire.md"), "**Responses that net/http sends.**")
	documented, _, _ = strings.Cut(documented, "\n\n")
	var log testLog
	server := serveLogged(New(testOptions(t, &log)), &log)
	defer server.Close()
	unread := 0 // requests
	type testCase struct{ send, want string }
	tests := map[string]testCase{
		// Bodies whose length is given twice or wrongly: no byte of a body is ever read as a request.
		"a length and chunks: the chunks count":        {chat("Content-Length: 4", chunked, closing) + chunks, "echoed"},
		"two lengths that agree":                       {chat("Content-Length: 48", "Content-Length: 48") + echoBody + last, "echoed listed"},
		"no length and no chunks":                      {chat() + last, "no-body listed"},
		"no length, no chunks and no key":              {lines(chatLine, host) + last, "no-key listed"},
		"a tab before chunked":                         {chat("Transfer-Encoding:\tchunked", closing) + chunks, "echoed"},
		"a body that is a request, of a GET":           {list(lengthOfLast) + last + last, "listed"},
		"a body that is a request, of an unknown path": {lines("POST /elsewhere HTTP/1.1", host, lengthOfLast) + last + last, "not-found listed"},
		"a body that is a request, without a key":      {lines(chatLine, host, lengthOfLast) + last + last, "no-key listed"},
		"an invalid body":                              {chat("Content-Length: 2") + "{}" + last, "invalid listed"},
		"an invalid body, in chunks":                   {chat(chunked) + "2\r\n{}\r\n0\r\n\r\n" + last, "invalid listed"},
		"more than the length":                         {chat("Content-Length: 47") + echoBody + last, "invalid 400"},
		"a body that does not arrive":                  {chat("Content-Length: 49") + echoBody, "stopped"},
		"an invalid chunk size":                        {chat(chunked) + "zz\r\n" + echoBody, "unread"},
		"a chunk size over 64 bits":                    {chat(chunked) + "FFFFFFFFFFFFFFFFF\r\n" + echoBody, "unread"},
		"a chunk longer than its size":                 {chat(chunked) + "5\r\n" + echoBody + "\r\n0\r\n\r\n" + last, "unread"},
		"a chunk that is cut short":                    {chat(chunked) + "50\r\n" + echoBody, "stopped"},
		"chunks without an end":                        {chat(chunked) + "30\r\n" + echoBody + "\r\n", "stopped"},
		"chunks with extensions and a trailer":         {chat(chunked, "Trailer: X-Sum") + "30;a=b\r\n" + echoBody + "\r\n0\r\nX-Sum: 42\r\n\r\n" + last, "echoed listed"},
		"a key in a trailer":                           {lines(chatLine, host, chunked, "Trailer: Authorization") + "30\r\n" + echoBody + "\r\n0\r\n" + key + "\r\n\r\n" + last, "no-key listed"},
		"chunks on HTTP/1.0":                           {lines("POST /v1/chat HTTP/1.0", key, chunked) + chunks, "no-body"},

		// Heads.
		"a line feed alone ends a line": {strings.ReplaceAll(last, "\r\n", "\n"), "listed"},
		"a folded line":                 {lines(listLine, host, "Authorization: Bearer", " "+testKey, closing), "listed"},
		"a head of more than 1 MiB":     {list("X-A: " + strings.Repeat("a", 2<<20)), "431"},
		"many small headers":            {list(strings.Repeat("X-A: a\r\n", 200_000) + "X-B: b"), "431"},
		"half a head":                   {listLine + "\r\n" + host, "400"},
		"nothing":                       {"", ""},
		"noise":                         {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"},
		"HTTP/1.0":                      {lines("GET /v1/bots HTTP/1.0", key), "listed"},
		"HTTP/0.9":                      {"GET /v1/bots\r\n", "400"},
		"HTTP/2 without an agreement":   {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "not-found"},
		"the asterisk form":             {lines("OPTIONS * HTTP/1.1", host, key, closing), "200"}, // net/http's own response
		"an upgrade":                    {list("Connection: Upgrade, close", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"), "listed"},
		"requests in a row":             {list() + chat("Content-Length: 48") + echoBody + last, "listed echoed listed"},

		// Requests that wait for 100 Continue.
		"an expectation":                      {chat("Expect: 100-continue", "Content-Length: 48", closing) + echoBody, "100 echoed"},
		"an expectation without a key":        {lines(chatLine, host, "Expect: 100-continue", "Content-Length: 48"), "no-key"},
		"an expectation in another spelling":  {lines(chatLine, host, "Expect: 100-Continue", "Content-Length: 48"), "no-key"},
		"an expectation with a wrong key":     {lines(chatLine, host, "Authorization: Bearer x", "Expect: 100-continue", "Content-Length: 48"), "wrong-key"},
		"an expectation with an unknown path": {lines("POST /v1/chats HTTP/1.1", host, key, "Expect: 100-continue", "Content-Length: 48"), "not-found"},
		"an expectation of too much":          {chat("Expect: 100-continue", "Content-Length: 1048577"), "too-large"},
		"another expectation":                 {chat("Expect: the-unexpected", "Content-Length: 48", closing) + echoBody, "417"},

		// Keys.
		"two keys":              {list("Authorization: Bearer bad", closing), "listed"},
		"a key of 500 KB":       {lines(listLine, host, "Authorization: Bearer "+strings.Repeat("k", 500_000), closing), "wrong-key"},
		"a header named with _": {lines(listLine, host, strings.Replace(key, "Authorization", "Authorization_", 1), closing), "no-key"},

		// A key or a text where net/http expects something different.
		"a body after the last chunk": {chat(chunked, closing) + "0\r\n" + chatBodyJSON(text, false) + "\r\n\r\n", "unread"},
		"a key after the last chunk":  {chat(chunked, closing) + "0\r\n " + key + "\r\n\r\n", "unread"},
		"a trailer without a colon":   {chat(chunked, closing) + "0\r\n" + text + "\r\n\r\n", "unread"},
		"a trailer without an end":    {chat(chunked, closing) + "0\r\nX-Text: " + strings.Repeat(text, 1000), "unread"},
		"a body for a chunk's size":   {chat(chunked, closing) + text + "\r\n", "unread"},
		"a body for a chunk's end":    {chat(chunked, closing) + "1\r\n{" + text + "\r\n0\r\n\r\n", "unread"},
		"a body that is cut short":    {chat("Content-Length: 1000") + chatBodyJSON(text, false), "stopped"},
		"a key in a query":            {lines("GET /v1/bots?"+testKey+";%zz HTTP/1.1", host, key, closing), "listed"},
	}
	// What net/http itself rejects: heads, and headers of a chat.
	for want, heads := range map[string][]string{
		"400": {
			lines(listLine, key), lines(listLine, host, host, key), lines(listLine, "Host: a b", key), lines(listLine, "Host: "+text+testKey, key),
			lines("G(T /v1/bots HTTP/1.1", host, key), lines("GET /v1/%zz HTTP/1.1", host, key), lines("GET v1/bots HTTP/1.1", host, key),
			lines("GET /"+testKey+"/%zz HTTP/1.1", host, key),
			chat("Content-Length: 48", "Content-Length: 5"), chat("Content-Length: 48, 48"), chat("Content-Length: +48"), chat("Content-Length: -1"),
			chat("Content-Length: 0x30"), chat("Content-Length: 18446744073709551664"), chat("Content-Length: " + text),
			chat("Transfer-Encoding : chunked"), chat("X-A: a\rX-B: b"), chat("X-A: a\x00b"), chat("Content Length: 5"), chat(": value"), chat(text),
		},
		"501": {
			chat("Transfer-Encoding: xchunked"), chat("Transfer-Encoding: gzip, chunked"), chat(chunked, chunked),
			chat("Transfer-Encoding: chunked, identity"), chat("Transfer-Encoding: " + text),
		},
		"505": {lines("GET /v1/bots HTTP/3.0", host, key)},
	} {
		for _, head := range heads {
			tests[head] = testCase{head + echoBody + last, want}
		}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			want := strings.Fields(test.want)
			responses, rest := converse(t, server, test.send)
			is.Equal(rest, "")
			is.Equal(len(responses), len(want))
			unread += strings.Count(test.want, "unread")
			for i, response := range responses {
				if !strings.HasPrefix(response, cmp.Or(named[want[i]], want[i]+" ")) {
					t.Errorf("response %d: %.200q, want %s", i+1, response, want[i])
				}
				if status, body, _ := strings.Cut(response, " "); status == want[i] && status >= "400" {
					is.True(strings.Contains(documented, status+" ("))
					is.True(!json.Valid([]byte(body)))
				}
			}
		})
	}
	is := is.New(t)
	is.True(!strings.Contains(log.String(), testKey))
	is.True(!strings.Contains(log.String(), text))
	is.Equal(strings.Count(log.String(), "reading the request body"), unread)
}

// converse sends bytes on a new connection, and returns the responses until the server
// closes it, and the rest that cannot be parsed. Without "close" in the bytes, the client
// closes its half of the connection.
func converse(t testing.TB, server *httptest.Server, send string) (responses []string, rest string) {
	rest, _ = eachResponse(sendRaw(t, server, send, !strings.Contains(send, "close")), func(res *http.Response, body string) {
		responses = append(responses, fmt.Sprintf("%d %s", res.StatusCode, body))
	})
	return responses, rest
}

// sendRaw sends these bytes, and returns what the server sends until the connection is
// closed.
func sendRaw(t testing.TB, server *httptest.Server, send string, closeHalf bool) string {
	conn := dialTCP(t, server)
	_ = conn.SetDeadline(time.Now().Add(8 * time.Second)) // a fuzzing process is killed after 10
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.WriteString(conn, send) // may fail if the server rejects the request early: the response says so
		if closeHalf {
			_ = conn.CloseWrite()
		}
	}()
	received, err := io.ReadAll(conn) // the error may be a reset, if the server has not read everything
	<-sent
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("no end after %q", received)
	}
	return string(received)
}

// eachResponse parses responses, to any method except HEAD.
func eachResponse(received string, visit func(res *http.Response, body string)) (rest string, err error) {
	unread := strings.NewReader(received)
	from := bufio.NewReader(unread)
	for {
		if _, err := from.Peek(1); err != nil {
			return "", nil
		}
		rest = received[len(received)-unread.Len()-from.Buffered():]
		res, err := http.ReadResponse(from, nil)
		if err != nil {
			return rest, err
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return rest, nil
		}
		visit(res, string(body))
	}
}

// A client that goes on sending gets its error response before the connection is reset,
// even net/http's client, which gives up after a failed write.
func TestHostileClientGoesOnSending(t *testing.T) {
	body := strings.Repeat(" ", 64<<20)
	announced := int64(len(body))
	server := httptest.NewServer(wrapped(New(testOptions(t, t.Output()))))
	defer server.Close()
	for name, change := range map[string]func(*http.Request){
		"announced":                              func(r *http.Request) { r.ContentLength = announced },
		"chunked":                                func(*http.Request) {},
		"announced, on a connection that closes": func(r *http.Request) { r.ContentLength, r.Close = announced, true },
		"chunked, on a connection that closes":   func(r *http.Request) { r.Close = true },
		"chunked, after 100 Continue": func(r *http.Request) {
			r.Header.Set("Expect", "100-continue")
			r.Header.Set("Authorization", "Bearer "+testKey)
		},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			for range 5 {
				r, err := http.NewRequest("POST", server.URL+"/v1/chat", io.MultiReader(strings.NewReader(body)))
				is.NoErr(err)
				change(r)
				res, err := server.Client().Do(r)
				is.NoErr(err)
				read, err := io.ReadAll(res.Body)
				is.NoErr(err)
				is.True(strings.HasPrefix(string(read), `{"detail":`))
				is.NoErr(res.Body.Close())
			}
		})
	}
}

// FuzzConnection sends any bytes to a real server. Whatever they are, the handler does not
// panic, and every response is well-formed.
func FuzzConnection(f *testing.F) {
	f.Add([]byte(lines(listLine, host, key, closing)))
	f.Add([]byte(lines(chatLine, host, key, "Content-Length: 48") + echoBody + lines(listLine, host, closing)))
	f.Add([]byte(lines(chatLine, host, key, "Transfer-Encoding: chunked") + "30\r\n" + echoBody + "\r\n0\r\nX: y\r\n\r\n"))
	f.Add([]byte(lines(chatLine, host, key, "Expect: 100-continue", "Content-Length: 47") + strings.Replace(echoBody, "false", "true", 1)))
	f.Add([]byte(lines(chatLine, host, key, "Content-Length: 4", "Transfer-Encoding: chunked") + "5\r\n{\"a\":\r\n0\r\n\r\n"))
	f.Add([]byte(lines("HEAD /v1/%62ots HTTP/1.0", key, "X-Request-Id: fuzz")))
	f.Add([]byte("GET http://a/v1/../bots?x#y HTTP/1.1\nHost: a\nAuthorization: bearer  x\n\n"))

	var log testLog
	server := serveLogged(New(testOptions(f, io.Discard)), &log)
	defer server.Close()
	f.Fuzz(func(t *testing.T, send []byte) {
		received := sendRaw(t, server, string(send), true)
		if !bytes.Contains(send, []byte("HEAD")) { // the length of a response to HEAD depends on its request
			checkResponses(t, received)
		}
		if strings.Contains(log.String(), "panic serving") {
			t.Fatal(log.String())
		}
	})
}

// checkResponses checks one response after the other. The last may be cut short, since a
// client that closes its half of the connection counts as disconnected.
func checkResponses(t *testing.T, received string) {
	_, err := eachResponse(received, func(res *http.Response, body string) {
		switch res.Header.Get("Content-Type") {
		case "application/json":
			if !json.Valid([]byte(body)) {
				t.Fatalf("not JSON: %q", body)
			}
			if res.StatusCode >= 400 {
				if err := checkError(body, true); err != nil {
					t.Fatal(err)
				}
			}
		case "text/event-stream":
			// On HTTP/1.0, an aborted connection looks like the end.
			if read := readStream(t, body); !read.done && len(res.TransferEncoding) > 0 {
				t.Fatalf("a complete stream without an end: %q", body)
			}
		}
	})
	if err != nil {
		t.Fatalf("not a response: %v: %q", err, received)
	}
}
