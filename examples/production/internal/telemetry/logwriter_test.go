package telemetry

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// TestLogThatNobodyReads fills a pipe and the memory behind it. The lines that
// have found room come once there is a reader, and then how many have not.
func TestLogThatNobodyReads(t *testing.T) {
	is := is.New(t)
	reader, pipe, err := os.Pipe()
	is.NoErr(err)
	defer reader.Close()
	const most = 4 * chunkBytes
	w := newLogWriter(pipe, most)
	line := func(i int64) string { return fmt.Sprintf(`{"line":%d,"%s":0}`+"\n", i, strings.Repeat("x", 1000)) }
	sent := int64(0)
	for w.Lost() < 10 {
		n, err := io.WriteString(w, line(sent))
		is.NoErr(err)
		is.Equal(n, len(line(sent)))
		sent++
	}

	lines := bufio.NewReader(reader)
	for i := range sent - 10 {
		got, err := lines.ReadString('\n')
		is.NoErr(err)
		is.Equal(got, line(i))
	}
	var loss struct {
		Level, Msg string
		Lines      int64
	}
	text, err := lines.ReadBytes('\n')
	is.NoErr(err)
	is.NoErr(json.Unmarshal(text, &loss))
	is.Equal(loss.Level, "WARN")
	is.Equal(loss.Msg, "log lines lost: nobody read them")
	is.Equal(loss.Lines, int64(10))

	_, _ = io.WriteString(w, "{}\n")
	w.Close()
	_, _ = io.WriteString(w, "too late\n")
	w.Close()
	is.Equal(w.Lost(), int64(11))
	is.NoErr(pipe.Close())
	rest, err := io.ReadAll(lines)
	is.NoErr(err)
	is.Equal(string(rest), "{}\n") // the loss is reported once
}
