// Command botapi serves bots from a PostgreSQL database, answered by model
// runtimes, and manages the database.
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
	"example.com/botapi/examples/production/internal/service"
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

Where an environment variable is listed, it can be used instead of the flag; the flag
takes precedence. The exit code is 0 for success, 2 for a usage error, 1 for a
failure.`

// program is the command line. Kong fills it in and calls the Run method of the
// chosen command.
type program struct {
	Version  kong.VersionFlag `help:"Show the version."`
	Database string           `required:"" env:"DATABASE_URL" placeholder:"URL" help:"The PostgreSQL database, as a URL."`
	LogLevel slog.Level       `env:"BOTAPI_LOG_LEVEL" default:"info" placeholder:"LEVEL" help:"The least important log lines to write: debug, info, warn or error. Lines go to standard error, in JSON."`

	Serve   serveCommand   `cmd:"" help:"Serve the bots."`
	Migrate migrateCommand `cmd:"" help:"Bring the database schema up to date. Safe to run again, and to run concurrently."`
	Bots    botsCommands   `cmd:"" help:"Manage the bots."`
	Limits  limitsCommands `cmd:"" help:"Manage the limits of accounts, which serve --redis enforces."`
	Keys    keysCommands   `cmd:"" help:"Manage the API keys."`
	Usage   usageCommands  `cmd:"" help:"Add up usage, or delete old usage."`

	opened *postgres.Database // nil if the command needs none
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process immediately
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
		kong.BindToProvider(func() (*postgres.Database, error) { return p.open(postgres.Options{}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}))
	if err != nil {
		panic(err) // the struct tags above are wrong
	}
	command, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "botapi: %v (see botapi --help)\n", err)
		return 2
	}
	defer p.close()
	if err := command.Run(&p); err != nil {
		complain(err)
		if _, ok := errors.AsType[mistake](err); ok {
			return 2
		}
		return 1
	}
	return 0
}

// complain prints an error on one line, and does not wait for a reader that
// hangs.
func complain(err error) {
	w := telemetry.NewLogWriter(os.Stderr)
	defer w.Close()
	fmt.Fprintf(w, "botapi: %s\n", oneLine(cause(err).Error()))
}

// version is the version that the Go toolchain has recorded: the tag, or the
// commit that the program was built from.
func version() string {
	info, _ := debug.ReadBuildInfo()
	return fmt.Sprintf("botapi %s %s %s/%s", info.Main.Version, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}

// cause is the cause of an error that is made for clients, or err itself.
func cause(err error) error {
	if answer, ok := errors.AsType[*botapi.StatusError](err); ok && answer.Err != nil {
		return answer.Err
	}
	return err
}

// oneLine puts a text on one line: errors of libraries, and names, may have
// several.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// A mistake is an error that the user of the command can fix.
type mistake struct{ error }

func (m mistake) Unwrap() error { return m.error }

func mistakef(format string, args ...any) error {
	return mistake{fmt.Errorf(format, args...)}
}

// open opens the database, which close closes.
func (p *program) open(o postgres.Options) (database *postgres.Database, err error) {
	if o.Logger == nil {
		o.Logger = telemetry.NewLogger(os.Stderr, p.LogLevel, service.ClientFrom)
	}
	if database, err = postgres.Open(p.Database, o); err != nil {
		return nil, mistake{err}
	}
	p.opened = database
	return database, nil
}

func (p *program) close() {
	if p.opened != nil {
		p.opened.Close()
		p.opened = nil
	}
}
