// Command doctor checks a service from outside, with all that is between its clients and its
// botapi handler: middleware, proxies, a load balancer, a CDN.
//
//	go run ./examples/doctor https://chat.example.com --key KEY --secret SECRET
//
// The secret is that of a probe in front of the service's engine, which shows the doctor the
// other side:
//
//	Engine: botapitest.Probed(engine, os.Getenv("DOCTOR_SECRET")),
//
// Without a secret, the doctor checks what it can see alone, with two or four chats that a model
// answers. It prints what is wrong, and otherwise one line, which also says how many checks there are
// with a secret. The exit code is 0 if nothing is wrong, 1 if something is, and 2 if the service could not
// be checked (go run itself makes 1 of every code but 0).
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"time"

	"example.com/botapi/examples/internal/stackcheck"
)

// Exit codes.
const (
	healthy      = 0
	hasFindings  = 1
	notChecked   = 2
	mostDuration = 10 * time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	target, asJSON, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return healthy
	case err != nil:
		return notChecked
	}
	return diagnose(ctx, target, asJSON, stdout, stderr)
}

// diagnose returns the exit code.
func diagnose(ctx context.Context, target stackcheck.Target, asJSON bool, stdout, stderr io.Writer) int {
	plan := stackcheck.PlanFor(target)
	fmt.Fprintln(stderr, announcement(target, plan))
	target.Delayed = func(says string) {
		fmt.Fprintf(stderr, "A limit of requests per second makes the checks wait (%s): they may take a minute or two.\n", says)
	}
	ctx, cancel := context.WithTimeout(ctx, mostDuration+2*target.Silence)
	defer cancel()
	results, err := stackcheck.Diagnose(ctx, target)
	if err != nil {
		fmt.Fprintln(stderr, "doctor:", err)
		return notChecked
	}
	code := codeOf(results)
	if asJSON {
		err = writeJSON(stdout, target, code, results)
	} else {
		err = writeTable(stdout, target, results)
	}
	if err != nil {
		fmt.Fprintln(stderr, "doctor:", err)
		return notChecked
	}
	return code
}

// parse reads flags before and after the address. It prints an error to stderr before it
// returns it.
func parse(args []string, stderr io.Writer) (target stackcheck.Target, asJSON bool, err error) {
	flags := flag.NewFlagSet("doctor", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: doctor https://chat.example.com --key KEY [--secret SECRET] [--origin ORIGIN] [--silence DURATION] [--json]")
		flags.PrintDefaults()
	}
	flags.StringVar(&target.Key, "key", "", "API `key`; the default is $BOTAPI_KEY")
	flags.StringVar(&target.Secret, "secret", "", "`secret` of botapitest.Probed in the service; the default is $DOCTOR_SECRET")
	flags.StringVar(&target.Origin, "origin", "", "`origin` of pages that must be able to use the service, such as https://app.example.com")
	flags.DurationVar(&target.Silence, "silence", 0, "how long a stream must be able to be silent; at least until its first keep-alive")
	flags.BoolVar(&asJSON, "json", false, "print all results as JSON, with the times of each event")
	var addresses []string
	for rest := args; ; {
		if err := flags.Parse(rest); err != nil {
			return target, asJSON, err
		}
		if flags.NArg() == 0 {
			break
		}
		addresses, rest = append(addresses, flags.Arg(0)), flags.Args()[1:]
	}
	target.Key = cmp.Or(target.Key, os.Getenv("BOTAPI_KEY"))
	target.Secret = cmp.Or(target.Secret, os.Getenv("DOCTOR_SECRET"))
	if err := check(&target, addresses); err != nil {
		fmt.Fprintln(stderr, "doctor:", err)
		flags.Usage()
		return target, asJSON, err
	}
	return target, asJSON, nil
}

func check(target *stackcheck.Target, addresses []string) error {
	if len(addresses) != 1 {
		return errors.New("there must be one address, such as https://chat.example.com")
	}
	address, err := url.Parse(addresses[0])
	switch {
	case err != nil || address.Host == "" || (address.Scheme != "http" && address.Scheme != "https"):
		return fmt.Errorf("%q is no address of a service, such as https://chat.example.com", addresses[0])
	case target.Key == "":
		return errors.New("the key is missing: --key or $BOTAPI_KEY")
	case target.Silence < 0 || target.Silence > 5*time.Minute:
		return errors.New("the silence must be between 0 and 5 minutes")
	}
	target.URL = strings.TrimSuffix(strings.TrimRight(addresses[0], "/"), "/v1")
	return nil
}

func announcement(target stackcheck.Target, plan stackcheck.Plan) string {
	if target.Secret == "" {
		return fmt.Sprintf("Sending at most %d chats to %s. %d of them are answered by a model. Without --secret, what only the service sees is not checked.",
			plan.Chats, target.URL, plan.Tokens)
	}
	return fmt.Sprintf("Sending about %d chats to %s, or at most %d if it has many replicas. The probe answers them, so that they cost no tokens.",
		(plan.One+9)/10*10, target.URL, plan.Chats)
}

func codeOf(results []stackcheck.Result) int {
	code := healthy
	for _, r := range results {
		if len(r.Findings) > 0 {
			return hasFindings
		}
		if r.Problem != "" {
			code = notChecked
		}
	}
	return code
}

func writeJSON(w io.Writer, target stackcheck.Target, code int, results []stackcheck.Result) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(struct {
		URL     string              `json:"url"`
		Probed  bool                `json:"probed"`
		Code    int                 `json:"code"`
		Results []stackcheck.Result `json:"results"`
	}{target.URL, target.Secret != "", code, results})
}

// writeTable writes one line if nothing is wrong.
func writeTable(w io.Writer, target stackcheck.Target, results []stackcheck.Result) error {
	if codeOf(results) == healthy {
		more := ""
		if target.Secret == "" {
			more = fmt.Sprintf(" With --secret, there are %d checks.", stackcheck.PlanFor(target).Probed)
		}
		_, err := fmt.Fprintf(w, "✓ %s: %d checks, nothing found.%s\n", target.URL, len(results), more)
		return err
	}
	width := 0
	for _, r := range results {
		width = max(width, len(r.Check))
	}
	var rows, details strings.Builder
	row := func(mark, check, sentence string) {
		fmt.Fprintln(&rows, strings.TrimRight(fmt.Sprintf("%s  %-*s  %s", mark, width, check, sentence), " "))
	}
	for _, r := range results {
		switch {
		case len(r.Findings) > 0:
			for _, f := range r.Findings {
				row("✗", r.Check, f.Effect+" ("+f.Doc+")")
				fmt.Fprintf(&details, "\n✗ %s\n  %s\n", r.Check, strings.ReplaceAll(f.String(), "\n", "\n  "))
			}
		case r.Problem != "":
			row("?", r.Check, "could not be checked: "+r.Problem)
		case r.Skipped != "":
			row("-", r.Check, r.Skipped)
		default:
			row("✓", r.Check, "")
		}
	}
	_, err := io.WriteString(w, rows.String()+details.String())
	return err
}
