package botapitest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"example.com/botapi"
)

// Store is a [botapi.BotStore] for [TestStore], and what it should do. Only Bots is required.
type Store struct {
	// Bots is the store.
	Bots botapi.BotStore

	// Published are the bots that it lists, in listing order.
	Published []botapi.Bot

	// Unpublished are bots that it knows and does not publish, or not for Account. Only
	// their UIDs and Slugs are used; one that is empty is not asked for.
	Unpublished []botapi.Bot

	// Account is the account of the requests; "" means "account".
	Account string

	// Failing is the store with a backend that fails, such as a database that was stopped.
	Failing botapi.BotStore

	// Hanging is the store with a backend that does not respond, such as a locked table. A
	// call must return within 10 seconds of its cancellation: because of it, or because of a
	// deadline of its own.
	Hanging botapi.BotStore
}

// TestStore tests that a store keeps the contract of [botapi.BotStore]: the list and its
// order, each bot by its uid and its slug, names that no bot has, contexts that are cancelled
// before a call and during one, concurrent calls, and errors. Each subtest that fails says
// which sentence of the contract was broken, what was called, what came back, and what a
// client would get. Run it with -race.
//
// It calls the store some thousand times, with contexts of requests, and changes nothing. No
// other test may change the bots meanwhile.
func TestStore(t *testing.T, s Store) {
	t.Helper()
	if s.Bots == nil {
		t.Fatal("botapitest: Store.Bots is nil")
	}
	for i, bot := range s.Published {
		if err := bot.Validate(); err != nil {
			t.Fatalf("botapitest: Store.Published[%d] is no valid bot: %v", i, err)
		}
	}
	runChecks(t, storeChecks(s, patience))
}

const (
	ruleBots     rule = "Bots returns the published bots in listing order; nil is an empty list."
	ruleByUID    rule = "BotByUID returns the published bot with exactly this uid, or ErrBotNotFound."
	ruleBySlug   rule = "BotBySlug is BotByUID for slugs."
	ruleNotFound rule = "ErrBotNotFound is returned by a BotStore, alone or wrapped, for a bot that is not published."
	ruleError    rule = "An error decides the response, as that of a verifier or an engine does"
)

// A storeTest calls a store as the handler does.
type storeTest struct {
	Store
	limit time.Duration // for a call that does not return
	lost  *lostCall
}

func storeChecks(s Store, limit time.Duration) []partCheck {
	if s.Account == "" {
		s.Account = "account"
	}
	st := storeTest{s, limit, &lostCall{rule: ruleDeadline, client: waitsForever}}
	return inOnePart(st.lost, []partCheck{
		{name: "Cancellation", run: st.during(st.cancellation)}, // first, since a store may keep what its first call has found
		{name: "NilErrors", run: st.during(st.nilErrors)},
		{name: "Bots", run: st.during(st.lists)},
		{name: "BotByUID", run: st.during(func(ctx context.Context) []problem { return st.finds(ctx, byUID) })},
		{name: "BotBySlug", run: st.during(func(ctx context.Context) []problem { return st.finds(ctx, bySlug) })},
		{name: "NotFound", run: st.during(st.notFound)},
		optional("Unpublished", len(s.Unpublished) > 0, "Store.Unpublished has no bots", st.during(st.unpublished)),
		{name: "Concurrency", run: st.during(st.concurrency)},
		optional("Failing", s.Failing != nil, "Store.Failing is nil", st.during(st.failing)),
		optional("Hanging", s.Hanging != nil, "Store.Hanging is nil", st.during(st.hanging)),
	})
}

func (st storeTest) during(check func(context.Context) []problem) func() []problem {
	return func() (found []problem) {
		duringRequest(st.Account, func(ctx context.Context) { found = check(ctx) })
		return found
	}
}

// A lookup is one of the two methods that find a bot.
type lookup struct {
	method string
	rule   rule
	name   func(botapi.Bot) string
	call   func(botapi.BotStore, context.Context, string) (botapi.Bot, error)
}

var (
	byUID  = lookup{"BotByUID", ruleByUID, func(b botapi.Bot) string { return b.UID }, botapi.BotStore.BotByUID}
	bySlug = lookup{"BotBySlug", ruleBySlug, func(b botapi.Bot) string { return b.Slug }, botapi.BotStore.BotBySlug}
)

func (st storeTest) find(ctx context.Context, l lookup, name string) result[botapi.Bot] {
	return st.findIn(ctx, st.Bots, l, name).withoutNilError()
}

func (st storeTest) findIn(ctx context.Context, store botapi.BotStore, l lookup, name string) result[botapi.Bot] {
	return callPart(st.lost, l.called(name), st.limit, func() (botapi.Bot, error) { return l.call(store, ctx, name) })
}

func (st storeTest) list(ctx context.Context) result[[]botapi.Bot] {
	return st.listOf(ctx, st.Bots).withoutNilError()
}

func (st storeTest) listOf(ctx context.Context, store botapi.BotStore) result[[]botapi.Bot] {
	return callPart(st.lost, "Bots(ctx)", st.limit, func() ([]botapi.Bot, error) { return store.Bots(ctx) })
}

func (l lookup) called(name string) string { return fmt.Sprintf("%s(ctx, %.200q)", l.method, name) }

// chatWith is what a client gets whose chat is for a bot that was looked up with a result.
func chatWith(r result[botapi.Bot]) string {
	if r.late {
		return waitsForever
	}
	s := serveAs("account")
	s.bot = func(context.Context, string) (botapi.Bot, error) { return r.replay() }
	return s.chat()
}

// listWith is what a client gets that asks for a list of bots.
func listWith(r result[[]botapi.Bot]) string {
	if r.late {
		return waitsForever
	}
	s := serveAs("account")
	s.bots = func(context.Context) ([]botapi.Bot, error) { return r.replay() }
	return s.list()
}

func (st storeTest) nilErrors(ctx context.Context) (found []problem) {
	listed := st.listOf(ctx, st.Bots)
	if isNilError(listed.err) {
		found = append(found, problem{ruleError, "Bots(ctx)", listed.String(), listWith(listed), nilErrorHint})
	}
	for _, l := range []lookup{byUID, bySlug} {
		names := []string{"botapitest-no-such-bot"}
		if len(st.Published) > 0 {
			names = append(names, l.name(st.Published[0]))
		}
		for _, name := range names {
			got := st.findIn(ctx, st.Bots, l, name)
			if isNilError(got.err) {
				found = append(found, problem{ruleError, l.called(name), got.String(), chatWith(got), nilErrorHint})
			}
		}
	}
	return found
}

func (st storeTest) lists(ctx context.Context) []problem {
	for i := range 50 { // the order of a map is often the same twice
		got := st.list(ctx)
		if hint, ok := st.compareList(got); !ok {
			if i > 0 && got.ok() {
				hint = "the order changes from call to call, as that of a map does, or of a query without ORDER BY; " + hint
			}
			return []problem{{ruleBots, "Bots(ctx)", got.String(), listWith(got), hint}}
		}
	}
	return nil
}

// compareList says what is wrong with a list.
func (st storeTest) compareList(got result[[]botapi.Bot]) (hint string, ok bool) {
	switch {
	case !got.ok():
		return "", false
	case slices.Equal(got.value, st.Published):
		return "", true
	case len(got.value) != len(st.Published):
		return fmt.Sprintf("Store.Published has %d bots", len(st.Published)), false
	}
	for i, want := range st.Published {
		if got.value[i] == want {
			continue
		}
		if slices.Contains(got.value, want) {
			return fmt.Sprintf("the order differs: Store.Published[%d] is %q", i, want.Slug), false
		}
		return fmt.Sprintf("%s, while Store.Published[%d] is %s", describeBot(got.value[i]), i, describeBot(want)), false
	}
	return "", false
}

func (st storeTest) finds(ctx context.Context, l lookup) (found []problem) {
	for _, want := range st.Published {
		got := st.find(ctx, l, l.name(want))
		if !got.ok() || got.value != want {
			found = append(found, problem{l.rule, l.called(l.name(want)), got.String(), chatWith(got), "it is published as " + describeBot(want)})
		}
	}
	return found
}

func (st storeTest) notFound(ctx context.Context) (found []problem) {
	for _, l := range []lookup{byUID, bySlug} {
		for _, name := range st.unknownNames(l) {
			found = append(found, st.mustNotFind(ctx, l, name)...)
		}
		if got := st.find(ctx, l, ""); got.ok() { // the handler does not ask for it; other code may
			found = append(found, problem{l.rule, l.called(""), got.String(), chatWith(got), "an empty name matches a bot"})
		}
	}
	return found
}

func (st storeTest) mustNotFind(ctx context.Context, l lookup, name string) []problem {
	got := st.find(ctx, l, name)
	switch {
	case got.returned() && errors.Is(got.err, botapi.ErrBotNotFound):
		return nil
	case got.ok() && got.value == (botapi.Bot{}):
		return []problem{{ruleNotFound, l.called(name), got.String(), chatWith(got), "a lookup in a map whose second value was not checked"}}
	case got.ok():
		return []problem{{l.rule, l.called(name), got.String(), chatWith(got), "the names are not compared exactly"}}
	}
	return []problem{{ruleNotFound, l.called(name), got.String(), chatWith(got), got.withoutResult("the backend's own error for no result was returned")}}
}

// unknownNames returns names that a client may send and no published bot has.
func (st storeTest) unknownNames(l lookup) []string {
	names := []string{
		"botapitest-no-such-bot", "0", "%", "_", "*", "'or'1'='1", `"\`, "../..", "null", "\ufffd", "Ω", "👋🏽",
		strings.Repeat("n", 300), strings.Repeat("語", 5000),
	}
	for _, bot := range st.Published {
		name := l.name(bot)
		names = append(names, strings.ToUpper(name), strings.ToLower(name), swapCase(name), name+"x", name+"%", name+"/", "x"+name,
			name[:len(name)/2], bot.UID, bot.Slug, bot.Name)
		names = append(names, otherForms(name)...)
	}
	return slices.DeleteFunc(names, func(name string) bool {
		isTaken := slices.ContainsFunc(st.Published, func(b botapi.Bot) bool { return l.name(b) == name })
		possible := botapi.Bot{UID: name, Slug: name, Name: "n", Model: "m"}
		return isTaken || possible.Validate() != nil
	})
}

// otherForms returns names that are the same for who parses numbers or UUIDs, or for a database
// whose collation ignores more than case.
func otherForms(name string) []string {
	accented := strings.NewReplacer("e", "é", "E", "É", "a", "á", "A", "Á").Replace(name)
	kelvin := strings.NewReplacer("k", "\u212a", "K", "\u212a").Replace(name) // which lower case makes a k
	return []string{
		"0" + name, "+" + name, "@" + name, "{" + name + "}", "urn:uuid:" + name, strings.ReplaceAll(name, "-", ""),
		accented, kelvin, name + "\u200b",
	}
}

func swapCase(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsUpper(c) {
			return unicode.ToLower(c)
		}
		return unicode.ToUpper(c)
	}, text)
}

func (st storeTest) unpublished(ctx context.Context) (found []problem) {
	for _, bot := range st.Unpublished {
		for _, l := range []lookup{byUID, bySlug} {
			if l.name(bot) == "" {
				continue
			}
			got := st.find(ctx, l, l.name(bot))
			if !got.returned() || !errors.Is(got.err, botapi.ErrBotNotFound) {
				found = append(found, problem{ruleNotFound, l.called(l.name(bot)), got.String(), chatWith(got), "the query lacks the condition that hides the bot"})
			}
		}
	}
	return found
}

// cancellation cancels contexts before calls and during calls. Whether a call then succeeds
// is its own affair, but it must return, must not lie, and must leave the store as it was.
func (st storeTest) cancellation(ctx context.Context) (found []problem) {
	for _, when := range []string{"cancelled before the call", "cancelled during the call"} {
		rounds := 1
		if when == "cancelled during the call" {
			rounds = 40
		}
		for _, cancel := range cancelling(ctx, when, rounds) {
			found = append(found, st.cancelled(ctx, cancel, when)...)
			if len(found) > 0 {
				return found
			}
		}
		found = append(found, st.afterwards(ctx, when)...)
	}
	return found
}

// cancelling returns contexts that are cancelled, or will be at different moments.
func cancelling(ctx context.Context, when string, n int) (all []func() context.Context) {
	for i := range n {
		all = append(all, func() context.Context {
			if when == "cancelled before the call" {
				return cancelledContext(ctx)
			}
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Duration(i)*25*time.Microsecond, cancel)
			return ctx
		})
	}
	return all
}

func (st storeTest) cancelled(ctx context.Context, begin func() context.Context, when string) (found []problem) {
	atTheSameTime := ", at the same time as a call whose context was " + when
	list := func() result[[]botapi.Bot] { return st.list(ctx) }
	isList := result[[]botapi.Bot].ok
	listed, other := beside(func() result[[]botapi.Bot] { return st.list(begin()) }, list, isList)
	if hint := harm(other, list, isList); hint != "" {
		found = append(found, problem{ruleCancelled, "Bots(ctx)" + atTheSameTime, other.String(), listWith(other), hint})
	}
	isRight := listed.err != nil || slices.Equal(listed.value, st.Published)
	if !listed.returned() || !isRight && len(listed.value) == 0 {
		found = append(found, problem{ruleCancelled, "Bots(ctx), with a context " + when, listed.String(), "nothing: it has disconnected", failureAsNone})
	}
	for _, l := range []lookup{byUID, bySlug} {
		name, isKnown := "botapitest-no-such-bot", len(st.Published) > 0
		if isKnown {
			name = l.name(st.Published[0])
		}
		find := func() result[botapi.Bot] { return st.find(ctx, l, name) }
		isRight := func(r result[botapi.Bot]) bool {
			return r.ok() || !isKnown && r.returned() && errors.Is(r.err, botapi.ErrBotNotFound)
		}
		got, other := beside(func() result[botapi.Bot] { return st.find(begin(), l, name) }, find, isRight)
		if hint := harm(other, find, isRight); hint != "" {
			found = append(found, problem{ruleCancelled, l.called(name) + atTheSameTime, other.String(), chatWith(other), hint})
		}
		if !got.returned() || isKnown && errors.Is(got.err, botapi.ErrBotNotFound) {
			found = append(found, problem{ruleCancelled, l.called(name) + ", with a context " + when, got.String(), "nothing: it has disconnected", failureAsNone})
		}
	}
	return found
}

// afterwards makes calls that nobody cancels, when others were cancelled.
func (st storeTest) afterwards(ctx context.Context, when string) []problem {
	after := ", right after a call whose context was " + when
	if got := st.list(ctx); got.late || isCancellation(got.err) {
		return []problem{{ruleCancelled, "Bots(ctx)" + after, got.String(), listWith(got), keptHint}}
	}
	for _, l := range []lookup{byUID, bySlug} {
		for _, bot := range st.Published[:min(1, len(st.Published))] {
			if got := st.find(ctx, l, l.name(bot)); got.late || isCancellation(got.err) {
				return []problem{{ruleCancelled, l.called(l.name(bot)) + after, got.String(), chatWith(got), keptHint}}
			}
		}
	}
	return nil
}

// concurrency makes all calls at the same time, and keeps each list until the end: a request
// may still be using it.
func (st storeTest) concurrency(ctx context.Context) []problem {
	const callers, rounds = 8, 25
	expected := [2]map[string]botapi.Bot{{}, {}} // what the store finds without competition
	before := st.list(ctx)
	if !before.ok() {
		return nil // the subtest Bots says so
	}
	list := slices.Clone(before.value)
	for i, l := range []lookup{byUID, bySlug} {
		for _, bot := range st.Published[:min(len(st.Published), 20)] {
			if got := st.find(ctx, l, l.name(bot)); got.ok() {
				expected[i][l.name(bot)] = got.value
			}
		}
	}
	c := collector{}
	c.run(callers, func(int) {
		var kept [][]botapi.Bot
		for range rounds {
			got := st.list(ctx)
			if !got.ok() || !slices.Equal(got.value, list) {
				c.add(problem{ruleConcurrent, "Bots(ctx), at the same time as other calls", got.String(), listWith(got), "the calls share a buffer, a row or a connection"})
				return
			}
			kept = append(kept, got.value)
			for i, l := range []lookup{byUID, bySlug} {
				for name, want := range expected[i] {
					if got := st.find(ctx, l, name); !got.ok() || got.value != want {
						c.add(problem{ruleConcurrent, l.called(name) + ", at the same time as other calls", got.String(), chatWith(got), "the calls share a buffer, a row or a connection"})
						return
					}
				}
			}
		}
		for _, earlier := range kept {
			if !slices.Equal(earlier, list) {
				later := result[[]botapi.Bot]{value: earlier}
				c.add(problem{ruleConcurrent, "Bots(ctx), whose slice a later call has changed", later.String(), listWith(later), "the store fills the same slice again, while a request is using it"})
				return
			}
		}
	})
	return c.found
}

// A collector collects the problems of concurrent callers.
type collector struct {
	mu    sync.Mutex
	found []problem
}

func (c *collector) add(p problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found = append(c.found, p)
}

func (c *collector) run(callers int, f func(caller int)) {
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// nameFor is the name by which a lookup finds a bot of the store, if one is known.
func (st storeTest) nameFor(l lookup) string {
	if len(st.Published) == 0 {
		return "botapitest-no-such-bot"
	}
	return l.name(st.Published[0])
}

func (st storeTest) failing(ctx context.Context) []problem {
	found := twice(func(again string) []problem {
		got := st.listOf(ctx, st.Failing).withoutNilError()
		return failure(ruleBots, "Bots(ctx) of Store.Failing"+again, got, got.String(), listWith(got), failureAsNone)
	})
	for _, l := range []lookup{byUID, bySlug} {
		name := st.nameFor(l)
		found = append(found, twice(func(again string) []problem {
			got := st.findIn(ctx, st.Failing, l, name).withoutNilError()
			return failure(ruleNotFound, l.called(name)+" of Store.Failing"+again, got, got.String(), chatWith(got), failureAsNone)
		})...)
	}
	return found
}

func (st storeTest) hanging(ctx context.Context) []problem {
	uid, slug := st.nameFor(byUID), st.nameFor(bySlug)
	for called, f := range map[string]func(context.Context) error{
		"Bots(ctx)":         func(ctx context.Context) error { _, err := st.Hanging.Bots(ctx); return err },
		byUID.called(uid):   func(ctx context.Context) error { _, err := st.Hanging.BotByUID(ctx, uid); return err },
		bySlug.called(slug): func(ctx context.Context) error { _, err := st.Hanging.BotBySlug(ctx, slug); return err },
	} {
		if found := mustReturn(ctx, called+" of Store.Hanging", st.limit, botapi.ErrBotNotFound, f); found != nil {
			return found // the others mostly take as long
		}
	}
	return nil
}

// mustReturn cancels a call that waits for a backend that does not respond, while another one
// waits for it, too. It must return, whether the cancellation ends it or a deadline of its own,
// and must not say that there is no such thing.
func mustReturn(ctx context.Context, called string, limit time.Duration, notFound error, f func(context.Context) error) []problem {
	other, cancelOther := context.WithCancel(ctx)
	defer cancelOther()
	otherEnded := make(chan struct{})
	go func() {
		defer close(otherEnded)
		call(unlimited, func() (string, error) { return "", f(other) })
	}()
	time.Sleep(20 * time.Millisecond) // so that it is mostly the first
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(50*time.Millisecond, cancel).Stop()
	got := call(limit, func() (string, error) { return "", f(ctx) }).withoutNilError()
	called += ", with a context cancelled during the call"
	cancelOther()
	switch {
	case got.late && call(limit, func() (bool, error) { <-otherEnded; return true, nil }).ok():
		return []problem{{ruleCancelled, called + ", while another call waits for the backend", fmt.Sprintf("nothing within %v", limit), "nothing: it has disconnected, while its request keeps a goroutine",
			"a lock is held during a query, and nobody who waits for it watches the context"}}
	case got.late:
		return []problem{{ruleCancelled, called, fmt.Sprintf("nothing within %v", limit), "nothing: it has disconnected, while its request keeps a goroutine and perhaps a connection",
			"neither the context nor a deadline of its own is passed on to the backend"}}
	case got.ok() || errors.Is(got.err, notFound):
		return []problem{{ruleCancelled, called, got.String(), "nothing: it has disconnected", failureAsNone}}
	}
	return nil
}
