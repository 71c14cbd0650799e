package main

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/logtest"
	"github.com/matryer/is"
)

// TestHangup sends SIGHUP in the middle of streams: it aborts none, and the
// replica says that it reloads nothing.
func TestHangup(t *testing.T) {
	is := is.New(t)
	end := make(chan struct{})
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Text("one")
		<-end
		s.Stop()
		s.Done()
	})
	p, key := serveOneBot(t, "--runtime", "local="+runtime.URL)
	var open []stream
	for range 100 {
		s := openStream(t, key, p.url)
		is.Equal(s.next(), `{"content":"one"}`)
		open = append(open, s)
	}
	is.NoErr(p.cmd.Process.Signal(syscall.SIGHUP))
	eventually(t, "the replica has noticed", func() bool { return strings.Contains(p.log.String(), "SIGHUP is ignored") })
	is.Equal(p.readiness(), http.StatusOK)
	close(end)
	for _, s := range open {
		is.Equal(s.next(), "[DONE]")
	}
	p.end(t)
}

// A logReader is a process that reads the log of a replica.
type logReader struct {
	pipe *os.File // the replica writes to it
	cat  *exec.Cmd
	read logtest.Log
}

func startLogReader(t *testing.T) *logReader {
	t.Helper()
	is := is.New(t)
	reader, pipe, err := os.Pipe()
	is.NoErr(err)
	r := &logReader{pipe: pipe, cat: exec.Command("cat")}
	r.cat.Stdin, r.cat.Stdout = reader, &r.read
	is.NoErr(r.cat.Start())
	is.NoErr(reader.Close())
	t.Cleanup(func() {
		pipe.Close()
		r.cat.Process.Kill()
		r.cat.Wait()
	})
	return r
}

// chats sends chats until a pipe is more than full of their log lines.
func chats(t *testing.T, p *process, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 300 {
		if answer := bodyOf(request(ctx, http.DefaultClient, key, "POST", p.url+"/v1/chat", chatBody("Hi", false))); answer != `{"content":"Hello"}` {
			t.Fatalf("a chat waits for the log: %s", answer)
		}
	}
}

// TestLogReaderHangs stops the process that reads the log. Chats do not wait for
// it, and it gets the lines once it reads again. A replica ends even if it
// hangs.
func TestLogReaderHangs(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := says(t, "Hello")
	reader := startLogReader(t)
	p := serveTo(t, reader.pipe, env, "--runtime", "local="+runtime.URL)
	p.ready(t)
	is.NoErr(reader.cat.Process.Signal(syscall.SIGSTOP))
	chats(t, p, key)
	is.Equal(p.readiness(), http.StatusOK)
	is.NoErr(reader.cat.Process.Signal(syscall.SIGCONT))
	eventually(t, "all lines are read", func() bool { return strings.Count(reader.read.String(), `"msg":"chat"`) == 300 })

	is.NoErr(reader.cat.Process.Signal(syscall.SIGSTOP))
	chats(t, p, key)
	p.end(t)
}

// TestLogReaderEnds kills the process that reads the log. Chats go on, and a
// metric counts the lines that nobody has read.
func TestLogReaderEnds(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := says(t, "Hello")
	reader := startLogReader(t)
	p := serveTo(t, reader.pipe, env, "--runtime", "local="+runtime.URL)
	p.ready(t)
	is.NoErr(reader.pipe.Close()) // ours
	is.NoErr(reader.cat.Process.Kill())
	chats(t, p, key)
	eventually(t, "the lost lines are counted", func() bool { return p.measures(t, `botapi_log_lines_lost_total\{.*\} [1-9]`) })
	p.end(t)
}

// TestFailureWhileLogReaderHangs ends with an error that nobody reads.
func TestFailureWhileLogReaderHangs(t *testing.T) {
	is := is.New(t)
	reader := startLogReader(t)
	is.NoErr(reader.cat.Process.Signal(syscall.SIGSTOP))
	is.NoErr(reader.pipe.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)))
	_, err := reader.pipe.Write(make([]byte, 1<<20)) // as much as fits
	is.True(os.IsTimeout(err))
	p := serveTo(t, reader.pipe, []string{"DATABASE_URL=postgres://"}, "--runtime", nowhere, "--redis", "nonsense")
	select {
	case err := <-p.exit:
		is.Equal(err.Error(), "exit status 2")
	case <-time.After(patience):
		t.Fatal("it did not end")
	}
}
