package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/logtest"
	"example.com/botapi/examples/production/internal/postgrestest"
	"example.com/botapi/examples/production/internal/service"
	"github.com/alecthomas/kong"
	"github.com/matryer/is"
)

const readme = "README.md"

// documents are the texts of the README and of the pages in docs, by file.
func documents(t *testing.T) map[string]string {
	t.Helper()
	files := []string{"../../" + readme}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal("no pages", err)
	}
	texts := make(map[string]string)
	for _, file := range append(files, pages...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[strings.TrimPrefix(file, "../../")] = string(text)
	}
	return texts
}

// TestLinks checks that every link, and its heading, exists. The README is
// short, and links to every page.
func TestLinks(t *testing.T) {
	is := is.New(t)
	documents := documents(t)
	is.True(strings.Count(documents[readme], "\n") <= 150)
	linked := map[string]bool{readme: true}
	for file, text := range documents {
		for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(text, -1) {
			to, heading, _ := strings.Cut(link[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			target := file
			if to != "" {
				target = filepath.Join(filepath.Dir(file), to)
			}
			_, err := os.Stat("../../" + target)
			is.NoErr(err)
			if heading == "" {
				linked[target] = linked[target] || file == readme
				continue
			}
			text, err := os.ReadFile("../../" + target) // perhaps a document of the root
			is.NoErr(err)
			if !slices.Contains(headings(string(text)), heading) {
				t.Errorf("%s: no heading %s in %s", file, heading, target)
			}
			linked[target] = linked[target] || file == readme
		}
	}
	for file := range documents {
		if !linked[file] {
			t.Errorf("the README does not link to %s", file)
		}
	}
}

// headings are the headings of a document, in the form of links to them.
func headings(text string) (anchors []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		words := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		anchors = append(anchors, strings.ReplaceAll(words, " ", "-"))
	}
	return anchors
}

// TestFirstBlockOfTheReadme runs the first commands of the README in a shell. It
// only replaces what belongs to this machine: ports, the database, and the path
// of the program.
func TestFirstBlockOfTheReadme(t *testing.T) {
	is := is.New(t)
	if _, err := exec.LookPath("createdb"); err != nil {
		t.Skip("createdb was not found: the README begins with it (Debian: apt-get install postgresql-client)")
	}
	database, err := url.Parse(postgrestest.Database(t))
	is.NoErr(err)
	runtime := says(t, "Hello", " yourself")
	public := fmt.Sprintf("127.0.0.1:%d", postgrestest.FreePort(t))
	internal := fmt.Sprintf("127.0.0.1:%d", postgrestest.FreePort(t))

	_, block, _ := strings.Cut(documents(t)[readme], "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	name := strings.TrimPrefix(database.Path, "/") + "_readme"
	block = strings.NewReplacer(
		"-h 127.0.0.1", "-h "+database.Hostname()+" -p "+database.Port(),
		"-U postgres botapi", "-U postgres "+name,
		"postgres://postgres@127.0.0.1:5432/botapi", database.Scheme+"://"+database.User.String()+"@"+database.Host+"/"+name,
		"http://127.0.0.1:11434/v1", runtime.URL,
		"127.0.0.1:8080", public,
		"127.0.0.1:9080", internal,
		"bin/botapi", filepath.Join(t.TempDir(), "botapi"),
	).Replace(block)
	t.Cleanup(func() {
		exec.Command("dropdb", "--force", "-h", database.Hostname(), "-p", database.Port(), "-U", "postgres", name).Run()
	})

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-eu")
	shell.Dir, shell.Stdin = "../..", strings.NewReader(block)
	shell.Env = append(os.Environ(), "BOTAPI_LISTEN="+public, "BOTAPI_INTERNAL_LISTEN="+internal)
	if password, ok := database.User.Password(); ok {
		shell.Env = append(shell.Env, "PGPASSWORD="+password)
	}
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to end the service, too
	shell.Cancel = func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) }
	var stdout, stderr logtest.Log
	shell.Stdout, shell.Stderr = &stdout, &stderr
	is.NoErr(shell.Start())
	defer func() {
		syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
		shell.Wait()
	}()
	eventually(t, "the model has answered", func() bool { return strings.Contains(stdout.String(), "data: [DONE]") })
	is.True(strings.Contains(stdout.String(), `"slug":"helper"`))
	is.True(strings.Contains(stdout.String(), `data: {"content":"Hello"}`))
}

// TestSupervisorsWaitLongEnough checks that the times in the documents and the
// unit exceed a replica's longest shutdown by at least a sixteenth.
func TestSupervisorsWaitLongEnough(t *testing.T) {
	is := is.New(t)
	longest := servedWith(t, "--database=postgres://", "--runtime=local=http://127.0.0.1:1").ShutdownTime()
	text := deployed(t, "botapi.service")
	for _, document := range documents(t) {
		text += document
	}
	given := regexp.MustCompile(`(?:TimeoutStopSec=|terminationGracePeriodSeconds: )(\d+)`).FindAllStringSubmatch(text, -1)
	is.Equal(len(given), 3)
	for _, match := range given {
		seconds, err := strconv.Atoi(match[1])
		is.NoErr(err)
		is.True(time.Duration(seconds)*time.Second >= longest+longest/16)
	}
}

// servedWith is the configuration of the serve command with these flags.
func servedWith(t *testing.T, flags ...string) service.Config {
	t.Helper()
	var p program
	parser, err := kong.New(&p, defaults())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(append([]string{"serve"}, flags...)); err != nil {
		t.Fatal(err)
	}
	return p.Serve.config(nil, nil, nil)
}

// TestReadmeSaysWhatEachPackageDoes checks that a table has each package.
func TestReadmeSaysWhatEachPackageDoes(t *testing.T) {
	text := documents(t)[readme]
	packages, err := filepath.Glob("../../internal/*")
	if err != nil || len(packages) == 0 {
		t.Fatal("no packages", err)
	}
	for _, directory := range packages {
		if !strings.Contains(text, "`internal/"+filepath.Base(directory)+"`") {
			t.Errorf("the table does not have %s", directory)
		}
	}
}
