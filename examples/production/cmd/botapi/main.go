// Command botapi serves bots from a PostgreSQL database, answered by model
// runtimes, and looks after the database.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/telemetry"
	"github.com/alecthomas/kong"
)

const description = `Serve bots from a PostgreSQL database, answered by model runtimes.

A first start, with a runtime on port 8000:

  export DATABASE_URL=postgres://postgres@127.0.0.1:5432/postgres
  export BOTAPI_RUNTIMES=local=http://127.0.0.1:8000/v1
  botapi migrate
  botapi bots import bots.json
  botapi keys create --account acme
  botapi serve

A flag that has an environment variable beside it can be given as that, too; the
flag counts before the variable. The exit code is 0 for success, 2 for a mistake
in what was asked, 1 for a failure.`

// program is the command line. Kong fills it in and calls the Run method of the
// command that was asked for.
type program struct {
	Version  kong.VersionFlag `help:"Say which version this is."`
	Database string           `required:"" env:"DATABASE_URL" placeholder:"URL" help:"The PostgreSQL database, as a URL."`
	LogLevel slog.Level       `env:"BOTAPI_LOG_LEVEL" default:"info" placeholder:"LEVEL" help:"The least important log lines to write: debug, info, warn or error. Lines go to standard error, in JSON."`

	Serve   serveCommand   `cmd:"" help:"Serve the bots."`
	Migrate migrateCommand `cmd:"" help:"Bring the database schema up to date. Safe to run again, and from many places at once."`
	Bots    botsCommands   `cmd:"" help:"Look after the bots."`
	Limits  limitsCommands `cmd:"" help:"Look after the limits of accounts, which serve --redis holds them to."`
	Keys    keysCommands   `cmd:"" help:"Look after the API keys."`
	Usage   usageCommands  `cmd:"" help:"Add up what was used, or delete what is too old to keep."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:]))
}

// run runs one command and returns the exit code.
func run(ctx context.Context, args []string) int {
	var p program
	parser, err := kong.New(&p,
		kong.Name("botapi"),
		kong.Description(description),
		kong.Vars{"version": version()},
		defaults(),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}))
	if err != nil {
		panic(err) // the struct tags above are wrong
	}
	command, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "botapi: %v (see botapi --help)\n", err)
		return 2
	}
	if err := command.Run(&p); err != nil {
		fmt.Fprintf(os.Stderr, "botapi: %s\n", oneLine(cause(err).Error()))
		return exitCode(err)
	}
	return 0
}

// version is what the Go toolchain knows of this program: its tag, or the
// commit that it was built from.
func version() string {
	info, _ := debug.ReadBuildInfo()
	return fmt.Sprintf("botapi %s %s %s/%s", info.Main.Version, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}

// cause is what is behind an error that is made for clients, else err itself.
func cause(err error) error {
	if answer, ok := errors.AsType[*botapi.StatusError](err); ok && answer.Err != nil {
		return answer.Err
	}
	return err
}

// oneLine is a text as one line: some errors of libraries have more, and some
// names.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// A mistake is an error that whoever typed the command can put right.
type mistake struct{ error }

func (m mistake) Unwrap() error { return m.error }

func mistakef(format string, args ...any) error {
	return mistake{fmt.Errorf(format, args...)}
}

func exitCode(err error) int {
	if _, ok := errors.AsType[mistake](err); ok {
		return 2
	}
	return 1
}

// with opens the database for one command.
func (p *program) with(o postgres.Options, do func(*postgres.Database) error) error {
	o.Logger = p.logger()
	database, err := postgres.Open(p.Database, o)
	if err != nil {
		return mistake{err}
	}
	defer database.Close()
	return do(database)
}

func (p *program) logger() *slog.Logger {
	return telemetry.NewLogger(os.Stderr, p.LogLevel)
}
