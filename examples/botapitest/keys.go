package botapitest

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"example.com/botapi"
)

// Keys is a [botapi.KeyVerifier] for [TestKeys], and what it should do. Verifier, Good and Bad
// are required.
type Keys struct {
	// Verifier is the verifier.
	Verifier botapi.KeyVerifier

	// Good is a valid key, and Account what the verifier returns for it.
	Good, Account string

	// Bad is a key that has the form of a key and is not valid.
	Bad string

	// Failing is the verifier with a backend that fails, such as a database that was stopped.
	Failing botapi.KeyVerifier

	// Hanging is the verifier with a backend that does not respond, such as a locked table. A
	// call must return within 10 seconds of its cancellation: because of it, or because of a
	// deadline of its own.
	Hanging botapi.KeyVerifier
}

// TestKeys tests that a verifier keeps the contract of [botapi.KeyVerifier]: the good key, bad
// keys, also such as only attackers send, contexts that are cancelled before a call and during
// one, concurrent calls, and errors. Each subtest that fails says which sentence of the
// contract was broken, what was called, what came back, and what a client would get. Run it
// with -race.
//
// It calls the verifier some thousand times, with contexts of requests. A message shows only
// the start of Good and Bad.
func TestKeys(t *testing.T, k Keys) {
	t.Helper()
	switch {
	case k.Verifier == nil:
		t.Fatal("botapitest: Keys.Verifier is nil")
	case !canBeKey(k.Good) || !canBeKey(k.Bad) || k.Good == k.Bad || len(k.Good) < 4:
		t.Fatal("botapitest: Keys.Good and Keys.Bad must be two keys of 4 bytes or more, without white space")
	}
	runChecks(t, keyChecks(k, patience))
}

// canBeKey reports whether the handler asks the verifier about a key.
func canBeKey(key string) bool {
	return key != "" && len(key) <= maxKey && !strings.ContainsFunc(key, unicode.IsSpace)
}

const maxKey = 8 << 10

const (
	ruleGood     rule = "VerifyKey returns the account of a valid key."
	ruleBad      rule = "ErrInvalidKey is returned by a KeyVerifier, alone or wrapped, for a key that is not valid."
	ruleExactly  rule = "Keys are compared exactly."
	ruleKeyError rule = "err decides the response, as that of a store or an engine does"
)

// A keyTest calls a verifier as the handler does.
type keyTest struct {
	Keys
	limit time.Duration // for a call that does not return
	lost  *lostCall
}

func keyChecks(k Keys, limit time.Duration) []partCheck {
	kt := keyTest{k, limit, &lostCall{rule: ruleDeadline, client: waitsForever}}
	return inOnePart(kt.lost, []partCheck{
		{name: "Cancellation", run: kt.during(kt.cancellation)}, // first, since a verifier may keep what its first call has found
		{name: "NilErrors", run: kt.during(kt.nilErrors)},
		{name: "Good", run: kt.during(kt.accepts)},
		{name: "Bad", run: kt.during(kt.rejects)},
		{name: "Concurrency", run: kt.during(kt.concurrency)},
		optional("Failing", k.Failing != nil, "Keys.Failing is nil", kt.during(kt.failing)),
		optional("Hanging", k.Hanging != nil, "Keys.Hanging is nil", kt.during(func(ctx context.Context) []problem {
			return mustReturn(ctx, kt.called(k.Good)+", of Keys.Hanging", limit, botapi.ErrInvalidKey, func(ctx context.Context) error {
				_, err := k.Hanging.VerifyKey(ctx, k.Good)
				return err
			})
		})),
	})
}

func (kt keyTest) during(check func(context.Context) []problem) func() []problem {
	return func() (found []problem) {
		duringVerification(func(ctx context.Context) { found = check(ctx) })
		return found
	}
}

func (kt keyTest) verify(ctx context.Context, key string) result[string] {
	return kt.verifyIn(ctx, kt.Verifier, key).withoutNilError()
}

func (kt keyTest) verifyIn(ctx context.Context, verifier botapi.KeyVerifier, key string) result[string] {
	return callPart(kt.lost, kt.called(key), kt.limit, func() (string, error) { return verifier.VerifyKey(ctx, key) })
}

// called describes a call. It shows nothing of the good key but its start, nor of the bad one,
// which may have been good once.
func (kt keyTest) called(key string) string {
	if key != kt.Bad && !strings.Contains(strings.ToLower(key), strings.ToLower(kt.Good[:len(kt.Good)-1])) {
		return fmt.Sprintf("VerifyKey(ctx, %.60q), a key of %d bytes", key, len(key))
	}
	start := []rune(key)
	return fmt.Sprintf("VerifyKey(ctx, %q), a key of %d bytes", string(start[:min(len(start)/3, 6)])+"…", len(key))
}

// requestWith is what a client gets whose key was verified with a result.
func requestWith(r result[string]) string {
	if r.late {
		return waitsForever
	}
	s := serveAs("")
	s.verify = func(context.Context, string) (string, error) { return r.replay() }
	return s.list()
}

func (kt keyTest) problem(rule rule, called string, r result[string], hint string) problem {
	return problem{rule, called, kt.describe(r), requestWith(r), hint}
}

// describe describes a result without the keys.
func (kt keyTest) describe(r result[string]) string {
	return strings.NewReplacer(kt.Good, "[Keys.Good]", kt.Good[:len(kt.Good)-1], "[Keys.Good]", kt.Bad, "[Keys.Bad]").Replace(r.String())
}

func (kt keyTest) nilErrors(ctx context.Context) (found []problem) {
	for _, key := range []string{kt.Good, kt.Bad} {
		got := kt.verifyIn(ctx, kt.Verifier, key)
		if isNilError(got.err) {
			found = append(found, kt.problem(ruleKeyError, kt.called(key), got, nilErrorHint))
		}
	}
	return found
}

func (kt keyTest) accepts(ctx context.Context) []problem {
	for range 3 { // a cache may have it later
		got := kt.verify(ctx, kt.Good)
		switch {
		case !got.ok():
			return []problem{kt.problem(ruleGood, kt.called(kt.Good)+", Keys.Good", got, "")}
		case got.value != kt.Account:
			return []problem{kt.problem(ruleGood, kt.called(kt.Good)+", Keys.Good", got, fmt.Sprintf("Keys.Account is %q", kt.Account))}
		}
	}
	return nil
}

// rejects makes calls with keys that are not valid. They need not be UTF-8: a header has bytes.
func (kt keyTest) rejects(ctx context.Context) (found []problem) {
	good := kt.Good
	for _, key := range []string{
		kt.Bad, good + "x", "x" + good, good[:len(good)-1], good + "%", good + "'--", strings.Repeat("k", maxKey),
		"%", "_", "*", "'or'1'='1", `"\`, "../..", "null", "0", "Ω", "\xff\xfe", good + "\xff", "$2a$10$",
		swapCase(good), strings.ToUpper(good), `"` + good + `"`, "'" + good + "'",
	} {
		if key == good || !canBeKey(key) {
			continue
		}
		for range 2 { // a cache may have it the second time
			found = append(found, kt.mustReject(ctx, key)...)
		}
	}
	return found
}

func (kt keyTest) mustReject(ctx context.Context, key string) []problem {
	got := kt.verify(ctx, key)
	chosen, isChosen := errors.AsType[*botapi.StatusError](got.err)
	switch {
	case got.returned() && (errors.Is(got.err, botapi.ErrInvalidKey) || isChosen && chosen.Status >= 400 && chosen.Status < 500):
		return nil
	case got.ok():
		broken := ruleBad
		if strings.EqualFold(strings.Trim(key, `"'`), kt.Good) {
			broken = ruleExactly
		}
		return []problem{kt.problem(broken, kt.called(key)+", which is not valid", got, "keys are compared in part, without case or without quotes, or a lookup in a map whose second value was not checked")}
	}
	return []problem{kt.problem(ruleBad, kt.called(key)+", which is not valid", got, got.withoutResult("the backend's own error was returned for a key that it does not know or cannot store"))}
}

// cancellation cancels contexts before calls and during calls. Whether a call then succeeds
// is its own affair, but it must return, must not lie, and must not affect other calls.
func (kt keyTest) cancellation(ctx context.Context) (found []problem) {
	verify, isRight := func() result[string] { return kt.verify(ctx, kt.Good) }, result[string].ok
	for _, when := range []string{"cancelled before the call", "cancelled during the call"} {
		rounds := 1
		if when == "cancelled during the call" {
			rounds = 40
		}
		for _, begin := range cancelling(ctx, when, rounds) {
			got, other := beside(func() result[string] { return kt.verify(begin(), kt.Good) }, verify, isRight)
			if !got.returned() || errors.Is(got.err, botapi.ErrInvalidKey) {
				return []problem{{ruleCancelled, kt.called(kt.Good) + ", Keys.Good, with a context " + when, kt.describe(got), "nothing: it has disconnected", "a failed lookup is taken for a key that is not known"}}
			}
			if hint := harm(other, verify, isRight); hint != "" {
				return []problem{kt.problem(ruleCancelled, kt.called(kt.Good)+", Keys.Good, at the same time as a call whose context was "+when, other, hint+"; botapi.CacheKeys shares lookups without that")}
			}
		}
		if got := kt.verify(ctx, kt.Good); got.late || isCancellation(got.err) {
			return []problem{kt.problem(ruleCancelled, kt.called(kt.Good)+", Keys.Good, right after a call whose context was "+when, got, keptHint)}
		}
		if got := kt.verify(cancelledContext(ctx), kt.Bad); got.ok() && !kt.verify(ctx, kt.Bad).ok() {
			return []problem{kt.problem(ruleBad, kt.called(kt.Bad)+", Keys.Bad, with a context cancelled before the call", got, "a lookup that was cancelled counts as one that succeeded")}
		}
	}
	return found
}

// concurrency verifies good and bad keys at the same time.
func (kt keyTest) concurrency(ctx context.Context) []problem {
	const callers, rounds = 8, 50
	alone := map[string]result[string]{kt.Good: kt.verify(ctx, kt.Good), kt.Bad: kt.verify(ctx, kt.Bad)}
	c := collector{}
	c.run(callers, func(caller int) {
		for i := range rounds {
			key := kt.Good
			if (caller+i)%2 == 0 {
				key = kt.Bad
			}
			got, want := kt.verify(ctx, key), alone[key]
			if got.ok() != want.ok() || got.ok() && got.value != want.value {
				c.add(kt.problem(ruleConcurrent, kt.called(key)+", at the same time as calls with another key", got, "the calls share a buffer, a hash or a connection"))
				return
			}
		}
	})
	return c.found
}

func (kt keyTest) failing(ctx context.Context) []problem {
	return twice(func(again string) []problem {
		got := kt.verifyIn(ctx, kt.Failing, kt.Good).withoutNilError()
		called := kt.called(kt.Good) + ", of Keys.Failing" + again
		if got.err != nil && showsKey(got.err.Error(), kt.Good) {
			return []problem{{ruleQuotes, called, "an error with a part of Keys.Good, or with the key in base64 or in hex", requestWith(got),
				"the key is shortened or encoded, and so the handler does not know it in what it logs: leave it out"}}
		}
		return failure(ruleBad, called, got, kt.describe(got), requestWith(got), failureAsBadKey)
	})
}

// showsKey reports whether a text has most of a key, or the key encoded. The handler itself withholds
// a text with the whole key, in the forms that the contract lists.
func showsKey(text, key string) bool {
	isIn := func(part string) bool { return strings.Contains(text, part) }
	if slices.ContainsFunc([]string{key, strings.Trim(strconv.Quote(key), `"`), url.QueryEscape(key), url.PathEscape(key)}, isIn) {
		return false
	}
	raw := []byte(key)
	shown := []string{base64.RawStdEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw), hex.EncodeToString(raw)}
	if most := len(key) * 2 / 3; most >= 8 { // less may be the name of a key, or a word
		shown = append(shown, key[:most], key[len(key)-most:])
	}
	return slices.ContainsFunc(shown, isIn)
}
