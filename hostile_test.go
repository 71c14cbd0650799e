package botapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

// lines joins the lines of a request's head, and ends it.
func lines(lines ...string) string { return strings.Join(lines, "\r\n") + "\r\n\r\n" }

// What the tables below are made of.
const (
	host     = "Host: bots.example.com"
	key      = "Authorization: Bearer " + testKey
	closing  = "Connection: close"
	chatLine = "POST /v1/chat HTTP/1.1"
	listLine = "GET /v1/bots HTTP/1.1"
	echoBody = `{"bot_slug":"echo","prompt":"hi","stream":false}` // 48 bytes
)

// Request bytes in, answers out: what a connection gets whose client, or the
// proxy in front of it, does not speak HTTP as one should. A want is the start
// of an answer: its status, and its body.
func TestHostileConnections(t *testing.T) {
	echoed, listed := `200 {"content":"hi"}`, `200 [{"uid":`
	notFound := `404 {"detail":"Not Found"}`
	last := lines(listLine, host, key, closing) // a request that ends the connection
	tests := map[string]struct {
		send string
		want []string
	}{
		// Bodies whose length is said twice or wrongly: no byte of a body is ever read as a request.
		"a length and chunks: the chunks count": {
			lines(chatLine, host, key, "Content-Length: 4", "Transfer-Encoding: chunked", closing) + "30\r\n" + echoBody + "\r\n0\r\n\r\n",
			[]string{echoed},
		},
		"two lengths that differ": {
			lines(chatLine, host, key, "Content-Length: 48", "Content-Length: 5") + echoBody + last,
			[]string{"400"},
		},
		"two lengths that agree": {
			lines(chatLine, host, key, "Content-Length: 48", "Content-Length: 48") + echoBody + last,
			[]string{echoed, listed},
		},
		"a list of lengths":       {lines(chatLine, host, key, "Content-Length: 48, 48") + echoBody + last, []string{"400"}},
		"a length with a sign":    {lines(chatLine, host, key, "Content-Length: +48") + echoBody + last, []string{"400"}},
		"a length below zero":     {lines(chatLine, host, key, "Content-Length: -1") + echoBody + last, []string{"400"}},
		"a hexadecimal length":    {lines(chatLine, host, key, "Content-Length: 0x30") + echoBody + last, []string{"400"}},
		"a length over 64 bits":   {lines(chatLine, host, key, "Content-Length: 18446744073709551664") + echoBody + last, []string{"400"}},
		"no length and no chunks": {lines(chatLine, host, key) + last, []string{`422 {"detail":[{"loc":["body"],"msg":"field required"`, listed}},
		"an unknown coding":       {lines(chatLine, host, key, "Transfer-Encoding: xchunked") + echoBody + last, []string{"501"}},
		"two codings":             {lines(chatLine, host, key, "Transfer-Encoding: gzip, chunked") + last, []string{"501"}},
		"chunks twice":            {lines(chatLine, host, key, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + last, []string{"501"}},
		"chunks, then identity":   {lines(chatLine, host, key, "Transfer-Encoding: chunked, identity") + last, []string{"501"}},
		"a space before a colon":  {lines(chatLine, host, key, "Transfer-Encoding : chunked") + "0\r\n\r\n" + last, []string{"400"}},
		"a tab before chunked":    {lines(chatLine, host, key, "Transfer-Encoding:\tchunked", closing) + "30\r\n" + echoBody + "\r\n0\r\n\r\n", []string{echoed}},
		"a body that is a request, of a GET": {
			lines(listLine, host, key, fmt.Sprint("Content-Length: ", len(last))) + last + last,
			[]string{listed, listed},
		},
		"a body that is a request, of an unknown path": {
			lines("POST /elsewhere HTTP/1.1", host, fmt.Sprint("Content-Length: ", len(last))) + last + last,
			[]string{notFound, listed},
		},
		"a body that is a request, refused for its key": {
			lines(chatLine, host, fmt.Sprint("Content-Length: ", len(last))) + last + last,
			[]string{`401 {"detail":"Not authenticated"}`, listed},
		},
		"more than the length": {
			lines(chatLine, host, key, "Content-Length: 47") + echoBody + last,
			[]string{`422 {"detail":[{"loc":["body",47]`, "400"},
		},
		"a body that does not come": {
			lines(chatLine, host, key, "Content-Length: 49") + echoBody,
			[]string{`400 {"detail":"Request body could not be read"}`},
		},
		"a chunk size that is none":    {lines(chatLine, host, key, "Transfer-Encoding: chunked") + "zz\r\n" + echoBody, []string{`400 {"detail":"Request body could not be read"}`}},
		"a chunk size over 64 bits":    {lines(chatLine, host, key, "Transfer-Encoding: chunked") + "FFFFFFFFFFFFFFFFF\r\n" + echoBody, []string{`400 {"detail":"Request body could not be read"}`}},
		"a chunk longer than its size": {lines(chatLine, host, key, "Transfer-Encoding: chunked") + "5\r\n" + echoBody + "\r\n0\r\n\r\n" + last, []string{`400 {"detail":"Request body could not be read"}`}},
		"chunks without an end":        {lines(chatLine, host, key, "Transfer-Encoding: chunked") + "30\r\n" + echoBody + "\r\n", []string{`400 {"detail":"Request body could not be read"}`}},
		"chunks with extensions and a trailer": {
			lines(chatLine, host, key, "Transfer-Encoding: chunked", "Trailer: X-Sum") + "30;a=b\r\n" + echoBody + "\r\n0\r\nX-Sum: 42\r\n\r\n" + last,
			[]string{echoed, listed},
		},
		"a key in a trailer": {
			lines(chatLine, host, "Transfer-Encoding: chunked", "Trailer: Authorization") + "30\r\n" + echoBody + "\r\n0\r\n" + key + "\r\n\r\n" + last,
			[]string{`401 {"detail":"Not authenticated"}`, listed},
		},
		"chunks on HTTP/1.0": {lines("POST /v1/chat HTTP/1.0", key, "Transfer-Encoding: chunked") + "30\r\n" + echoBody + "\r\n0\r\n\r\n", []string{`422 {"detail":[{"loc":["body"],"msg":"field required"`}},

		// Heads.
		"a line feed alone ends a line": {strings.ReplaceAll(last, "\r\n", "\n"), []string{listed}},
		"a carriage return in a value":  {lines(listLine, host, key, "X-A: a\rX-B: b"), []string{"400"}},
		"a zero in a value":             {lines(listLine, host, key, "X-A: a\x00b"), []string{"400"}},
		"a space in a name":             {lines(listLine, host, key, "Content Length: 5"), []string{"400"}},
		"no name":                       {lines(listLine, host, key, ": value"), []string{"400"}},
		"a folded line":                 {lines(listLine, host, "Authorization: Bearer", " "+testKey, closing), []string{listed}},
		"no host":                       {lines(listLine, key), []string{"400"}},
		"two hosts":                     {lines(listLine, host, host, key), []string{"400"}},
		"a hostile host":                {lines(listLine, "Host: a b", key), []string{"400"}},
		"a head of more than 1 MiB":     {lines(listLine, host, key, "X-A: "+strings.Repeat("a", 2<<20)), []string{"431"}},
		"many small headers":            {lines(listLine, host, key, strings.Repeat("X-A: a\r\n", 200_000)+"X-B: b"), []string{"431"}},
		"half a head":                   {listLine + "\r\n" + host, []string{"400"}},
		"nothing":                       {"", nil},
		"noise":                         {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", []string{"400"}},
		"HTTP/1.0":                      {lines("GET /v1/bots HTTP/1.0", key), []string{listed}},
		"HTTP/0.9":                      {"GET /v1/bots\r\n", []string{"400"}},
		"HTTP/2 without an agreement":   {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []string{notFound}},
		"HTTP/3.0":                      {lines("GET /v1/bots HTTP/3.0", host, key), []string{"505"}},
		"a method in lower case":        {lines("get /v1/bots HTTP/1.1", host, key, closing), []string{`405 {"detail":"Method Not Allowed"}`}},
		"a method of its own":           {lines("BREW /v1/chat HTTP/1.1", host, key, closing), []string{`405 {"detail":"Method Not Allowed"}`}},
		"a method that is none":         {lines("G(T /v1/bots HTTP/1.1", host, key), []string{"400"}},
		"an upgrade":                    {lines(listLine, host, key, "Connection: Upgrade, close", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"), []string{listed}},
		"requests in a row":             {lines(listLine, host, key) + lines(chatLine, host, key, "Content-Length: 48") + echoBody + last, []string{listed, echoed, listed}},

		// Who may wait for 100 Continue, and who gets it.
		"an expectation": {lines(chatLine, host, key, "Expect: 100-continue", "Content-Length: 48", closing) + echoBody, []string{"100 ", echoed}},
		"an expectation without a key": {
			lines(chatLine, host, "Expect: 100-continue", "Content-Length: 48"),
			[]string{`401 {"detail":"Not authenticated"}`},
		},
		"an expectation of too much": {
			lines(chatLine, host, key, "Expect: 100-continue", "Content-Length: 1048577"),
			[]string{`413 {"detail":"Request body too large"}`},
		},
		"another expectation": {lines(chatLine, host, key, "Expect: the-unexpected", "Content-Length: 48", closing) + echoBody, []string{"417"}},

		// Targets.
		"the absolute form":               {lines("GET http://elsewhere.example/v1/bots HTTP/1.1", host, key, closing), []string{listed}},
		"the absolute form, nothing else": {lines("GET http://elsewhere.example HTTP/1.1", host, key, closing), []string{notFound}},
		"the authority form":              {lines("CONNECT bots.example.com:80 HTTP/1.1", host, key, closing), []string{notFound}},
		"the asterisk form":               {lines("OPTIONS * HTTP/1.1", host, key, closing), []string{"200"}}, // net/http's own answer
		"dots":                            {lines("GET /v1/../v1/bots HTTP/1.1", host, key, closing), []string{notFound}},
		"one dot":                         {lines("GET /v1/./bots HTTP/1.1", host, key, closing), []string{notFound}},
		"encoded dots":                    {lines("GET /%2e%2e/v1/bots HTTP/1.1", host, key, closing), []string{notFound}},
		"two slashes":                     {lines("GET //v1/bots HTTP/1.1", host, key, closing), []string{notFound}},
		"a slash at the end":              {lines("GET /v1/bots/ HTTP/1.1", host, key, closing), []string{notFound}},
		"an encoded slash":                {lines("GET /v1%2Fbots HTTP/1.1", host, key, closing), []string{listed}},
		"an encoded letter":               {lines("GET /v1/%62ots HTTP/1.1", host, key, closing), []string{listed}},
		"an encoded zero":                 {lines("GET /v1/bots%00 HTTP/1.1", host, key, closing), []string{notFound}},
		"a broken encoding":               {lines("GET /v1/%zz HTTP/1.1", host, key), []string{"400"}},
		"a letter in another case":        {lines("GET /V1/bots HTTP/1.1", host, key, closing), []string{notFound}},
		"a parameter":                     {lines("GET /v1/bots;a=b HTTP/1.1", host, key, closing), []string{notFound}},
		"a query":                         {lines("GET /v1/bots?a=/../b HTTP/1.1", host, key, closing), []string{listed}},
		"a fragment":                      {lines("GET /v1/bots#a HTTP/1.1", host, key, closing), []string{notFound}},
		"a target without a slash":        {lines("GET v1/bots HTTP/1.1", host, key), []string{"400"}},

		// Keys.
		"two keys, the good one first":  {lines(listLine, host, key, "Authorization: Bearer bad", closing), []string{listed}},
		"two keys, the good one second": {lines(listLine, host, "Authorization: Bearer bad", key, closing), []string{`401 {"detail":"Invalid API key"}`}},
		"two schemes":                   {lines(listLine, host, "Authorization: Basic YTpi", key, closing), []string{`401 {"detail":"Not authenticated"}`}},
		"two keys in one header":        {lines(listLine, host, key+", Bearer "+testKey, closing), []string{`401 {"detail":"Not authenticated"}`}},
		"a key of 500 KB":               {lines(listLine, host, "Authorization: Bearer "+strings.Repeat("k", 500_000), closing), []string{`401 {"detail":"Invalid API key"}`}},
		"a header named with _":         {lines(listLine, host, strings.Replace(key, "Authorization", "Authorization_", 1), closing), []string{`401 {"detail":"Not authenticated"}`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			server := httptest.NewServer(New(testOptions(t, io.Discard)))
			defer server.Close()
			answers, rest := converse(t, server, test.send)
			is.Equal(rest, "")
			is.Equal(len(answers), len(test.want))
			for i, answer := range answers {
				if !strings.HasPrefix(answer, test.want[i]) {
					t.Errorf("answer %d: %.200q, want %q", i+1, answer, test.want[i])
				}
			}
		})
	}
}

// converse sends bytes on a connection of their own, and returns the answers
// until the server closes it, and what is none. A client that did not ask for
// that closes its half.
func converse(t testing.TB, server *httptest.Server, send string) (answers []string, rest string) {
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.WriteString(conn, send) // refused in the middle: then the answer says so
		if !strings.Contains(send, "close") {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
	}()
	received, _ := io.ReadAll(conn) // a reset, where the server did not take all
	<-sent
	return parseAnswers(string(received))
}

// parseAnswers reads answers to anything but HEAD.
func parseAnswers(received string) (answers []string, rest string) {
	from := bufio.NewReader(strings.NewReader(received))
	for {
		if _, err := from.Peek(1); err != nil {
			return answers, ""
		}
		left, _ := from.Peek(from.Buffered())
		rest = string(left)
		res, err := http.ReadResponse(from, nil)
		if err != nil {
			return answers, rest
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return answers, rest
		}
		answers = append(answers, fmt.Sprintf("%d %s", res.StatusCode, body))
	}
}

// FuzzConnection sends any bytes to a real server. Whatever they are, the server
// lives, every answer is one, and an error says in JSON what is wrong.
func FuzzConnection(f *testing.F) {
	f.Add([]byte(lines(listLine, host, key, closing)))
	f.Add([]byte(lines(chatLine, host, key, "Content-Length: 48") + echoBody + lines(listLine, host, closing)))
	f.Add([]byte(lines(chatLine, host, key, "Transfer-Encoding: chunked") + "30\r\n" + echoBody + "\r\n0\r\nX: y\r\n\r\n"))
	f.Add([]byte(lines(chatLine, host, key, "Expect: 100-continue", "Content-Length: 47") + strings.Replace(echoBody, "false", "true", 1)))
	f.Add([]byte(lines(chatLine, host, key, "Content-Length: 4", "Transfer-Encoding: chunked") + "5\r\n{\"a\":\r\n0\r\n\r\n"))
	f.Add([]byte(lines("HEAD /v1/%62ots HTTP/1.0", key, "X-Request-Id: fuzz")))
	f.Add([]byte("GET http://a/v1/../bots?x#y HTTP/1.1\nHost: a\nAuthorization: bearer  x\n\n"))

	var log testLog
	server := httptest.NewUnstartedServer(New(testOptions(f, io.Discard)))
	server.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(&log, nil), slog.LevelError)
	server.Start()
	defer server.Close()
	f.Fuzz(func(t *testing.T, send []byte) {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(8 * time.Second)) // a fuzzing process is ended after 10
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = conn.Write(send)
			_ = conn.(*net.TCPConn).CloseWrite()
		}()
		received, err := io.ReadAll(conn)
		<-sent
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			t.Fatalf("no end after %q", received)
		}
		if !bytes.Contains(send, []byte("HEAD")) { // whose answers only its sender can read
			checkAnswers(t, received)
		}
		if strings.Contains(log.String(), "panic serving") {
			t.Fatal(log.String())
		}
	})
}

// checkAnswers reads answers one after the other. The last may be cut short,
// since a client that closes its half counts as gone.
func checkAnswers(t *testing.T, received []byte) {
	from := bufio.NewReader(bytes.NewReader(received))
	for {
		if _, err := from.Peek(1); err != nil {
			return
		}
		res, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatalf("not an answer: %v: %q", err, received)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return
		}
		switch res.Header.Get("Content-Type") {
		case "application/json":
			if !json.Valid(body) {
				t.Fatalf("not JSON: %q", body)
			}
			if res.StatusCode >= 400 {
				if err := lookAtError(string(body), true); err != nil {
					t.Fatal(err)
				}
			}
		case "text/event-stream":
			// In HTTP/1.0, a cut looks like the end.
			if read := readStream(t, string(body)); !read.done && len(res.TransferEncoding) > 0 {
				t.Fatalf("a whole stream without an end: %q", body)
			}
		}
	}
}
