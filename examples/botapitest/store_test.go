package botapitest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
)

var twoBots = []botapi.Bot{
	{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1", Description: "Helps."},
	{UID: "u2", Slug: "parrot", Name: "Parrot", Model: "m2", AvatarURL: "https://example.com/parrot.png"},
}

var hiddenBot = botapi.Bot{UID: "u3", Slug: "hidden", Name: "Hidden", Model: "m3"}

// stopped is a store whose database has been stopped.
type stopped struct{ err error }

func (s stopped) Bots(context.Context) ([]botapi.Bot, error) { return nil, s.err }
func (s stopped) BotByUID(context.Context, string) (botapi.Bot, error) {
	return botapi.Bot{}, s.err
}
func (s stopped) BotBySlug(context.Context, string) (botapi.Bot, error) {
	return botapi.Bot{}, s.err
}

// locked is a store whose database does not respond.
type locked struct{}

func (locked) Bots(ctx context.Context) ([]botapi.Bot, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (locked) BotByUID(ctx context.Context, _ string) (botapi.Bot, error) {
	<-ctx.Done()
	return botapi.Bot{}, ctx.Err()
}
func (locked) BotBySlug(ctx context.Context, _ string) (botapi.Bot, error) {
	<-ctx.Done()
	return botapi.Bot{}, ctx.Err()
}

// A patched store has other methods than the one behind it.
type patched struct {
	botapi.BotStore
	bots   func(context.Context) ([]botapi.Bot, error)
	byUID  func(context.Context, string) (botapi.Bot, error)
	bySlug func(context.Context, string) (botapi.Bot, error)
}

func (p patched) Bots(ctx context.Context) ([]botapi.Bot, error) {
	if p.bots != nil {
		return p.bots(ctx)
	}
	return p.BotStore.Bots(ctx)
}

func (p patched) BotByUID(ctx context.Context, uid string) (botapi.Bot, error) {
	if p.byUID != nil {
		return p.byUID(ctx, uid)
	}
	return p.BotStore.BotByUID(ctx, uid)
}

func (p patched) BotBySlug(ctx context.Context, slug string) (botapi.Bot, error) {
	if p.bySlug != nil {
		return p.bySlug(ctx, slug)
	}
	return p.BotStore.BotBySlug(ctx, slug)
}

// zeroForUnknown finds an empty bot under each unknown uid.
type zeroForUnknown struct{ *botapi.MemoryStore }

func (s zeroForUnknown) BotByUID(ctx context.Context, uid string) (botapi.Bot, error) {
	bot, err := s.MemoryStore.BotByUID(ctx, uid)
	if errors.Is(err, botapi.ErrBotNotFound) {
		err = nil
	}
	return bot, err
}

// looksUp makes a store that looks up another slug than it was asked for.
func looksUp(good botapi.BotStore, other func(slug string) string) func() Store {
	return func() Store {
		return Store{Bots: patched{BotStore: good, bySlug: func(ctx context.Context, slug string) (botapi.Bot, error) {
			return good.BotBySlug(ctx, other(slug))
		}}}
	}
}

func TestBrokenStores(t *testing.T) {
	t.Parallel()
	good := storeOf(t, twoBots...)
	for _, c := range []struct {
		name            string
		broken          func() Store
		subtest, phrase string
	}{
		{"lists in another order", func() Store {
			return Store{Bots: patched{BotStore: good, bots: func(context.Context) ([]botapi.Bot, error) {
				return []botapi.Bot{twoBots[1], twoBots[0]}, nil
			}}}
		}, "Bots", `the order differs: Store.Published[0] is "helper"`},
		{"changes the order now and then", func() Store {
			var calls atomic.Int64
			return Store{Bots: patched{BotStore: good, bots: func(ctx context.Context) ([]botapi.Bot, error) {
				// calls of the subtest Bots are one by one
				if ctx.Done() == nil && calls.Add(1) == 200 {
					return []botapi.Bot{twoBots[1], twoBots[0]}, nil
				}
				return twoBots, nil
			}}}
		}, "Bots", "the order changes from call to call, as that of a map does"},
		{"panics for an unknown slug", func() Store {
			return Store{Bots: patched{BotStore: good, bySlug: func(ctx context.Context, slug string) (botapi.Bot, error) {
				bot, err := good.BotBySlug(ctx, slug)
				if err != nil {
					panic("index out of range")
				}
				return bot, nil
			}}}
		}, "NotFound", "perhaps:    the code expects a result, or another form of name or key"},
		{"lists too few", func() Store {
			return Store{Bots: patched{BotStore: good, bots: func(context.Context) ([]botapi.Bot, error) { return twoBots[:1], nil }}}
		}, "Bots", "Store.Published has 2 bots"},
		{"lists a bot without its description", func() Store {
			without := slices.Clone(twoBots)
			without[0].Description = ""
			return Store{Bots: patched{BotStore: good, bots: func(context.Context) ([]botapi.Bot, error) { return without, nil }}}
		}, "Bots", "while Store.Published[0] is"},
		{"fails to list", func() Store {
			return Store{Bots: patched{BotStore: good, bots: func(context.Context) ([]botapi.Bot, error) { return nil, errBackend }}}
		}, "Bots", `the client: 500 {"detail":"Internal Server Error"}`},
		{"panics when it lists", func() Store {
			return Store{Bots: patched{BotStore: good, bots: func(ctx context.Context) ([]botapi.Bot, error) {
				if ctx.Done() == nil { // nobody will cancel it
					panic("nil map")
				}
				return twoBots, nil
			}}}
		}, "Bots", "a panic: nil map"},
		{"finds another bot by its uid", func() Store {
			return Store{Bots: patched{BotStore: good, byUID: func(ctx context.Context, uid string) (botapi.Bot, error) {
				if uid == "u2" {
					uid = "u1"
				}
				return good.BotByUID(ctx, uid)
			}}}
		}, "BotByUID", "an answer of the bot u1"},
		{"finds a bot without its avatar by its slug", func() Store {
			return Store{Bots: patched{BotStore: good, bySlug: func(ctx context.Context, slug string) (botapi.Bot, error) {
				bot, err := good.BotBySlug(ctx, slug)
				bot.AvatarURL = ""
				return bot, err
			}}}
		}, "BotBySlug", "https://example.com/parrot.png"},
		{"returns an empty bot for an unknown uid", func() Store { return Store{Bots: zeroForUnknown{good}} }, "NotFound", `the client: 200 {"content":"an answer of the bot "}`},
		{"returns the database's own error for an unknown slug", func() Store {
			return Store{Bots: patched{BotStore: good, bySlug: func(ctx context.Context, slug string) (botapi.Bot, error) {
				bot, err := good.BotBySlug(ctx, slug)
				if err != nil {
					err = errors.New("sql: no rows in result set")
				}
				return bot, err
			}}}
		}, "NotFound", `the contract says: "ErrBotNotFound is returned by a BotStore`},
		{"ignores case", func() Store {
			return Store{Bots: patched{BotStore: good, bySlug: func(ctx context.Context, slug string) (botapi.Bot, error) {
				return good.BotBySlug(ctx, strings.ToLower(slug))
			}}}
		}, "NotFound", `BotBySlug(ctx, "HELPER")`},
		{"takes an @ off", looksUp(good, func(slug string) string { return strings.TrimPrefix(slug, "@") }), "NotFound", `BotBySlug(ctx, "@helper")`},
		{"takes braces off", looksUp(good, func(slug string) string { return strings.Trim(slug, "{}") }), "NotFound", `BotBySlug(ctx, "{helper}")`},
		{"ignores accents", looksUp(good, strings.NewReplacer("é", "e", "á", "a").Replace), "NotFound", `BotBySlug(ctx, "hélpér")`},
		{"ignores characters without a width", looksUp(good, func(slug string) string { return strings.ReplaceAll(slug, "\u200b", "") }), "NotFound", `BotBySlug(ctx, "helper\u200b")`},
		{"takes an empty uid for the first bot", func() Store {
			return Store{Bots: patched{BotStore: good, byUID: func(ctx context.Context, uid string) (botapi.Bot, error) {
				if uid == "" {
					return twoBots[0], nil
				}
				return good.BotByUID(ctx, uid)
			}}}
		}, "NotFound", "an empty name matches a bot"},
		{"takes a slug for a uid", func() Store {
			return Store{Bots: patched{BotStore: good, byUID: func(ctx context.Context, uid string) (botapi.Bot, error) {
				if bot, err := good.BotBySlug(ctx, uid); err == nil {
					return bot, nil
				}
				return good.BotByUID(ctx, uid)
			}}}
		}, "NotFound", `BotByUID(ctx, "helper")`},
		{"fails for a long name", func() Store {
			return Store{Bots: patched{BotStore: good, byUID: func(ctx context.Context, uid string) (botapi.Bot, error) {
				if len(uid) > 255 {
					return botapi.Bot{}, errors.New("value too long for type character varying(255)")
				}
				return good.BotByUID(ctx, uid)
			}}}
		}, "NotFound", "value too long"},
		{"finds a bot that is not published", func() Store {
			return Store{Unpublished: []botapi.Bot{hiddenBot}, Bots: patched{BotStore: good, bySlug: func(ctx context.Context, slug string) (botapi.Bot, error) {
				if slug == "hidden" {
					return hiddenBot, nil
				}
				return good.BotBySlug(ctx, slug)
			}}}
		}, "Unpublished", `BotBySlug(ctx, "hidden")`},
		{"returns a typed nil error", func() Store {
			return Store{Bots: patched{BotStore: good, byUID: func(ctx context.Context, uid string) (botapi.Bot, error) {
				if bot, err := good.BotByUID(ctx, uid); err != nil {
					return bot, err
				}
				return twoBots[uid[1]-'1'], nilWrong()
			}}}
		}, "NilErrors", "*botapitest.wrong(nil), which is not nil"},
		{"lists with a typed nil error", func() Store {
			return Store{Bots: patched{BotStore: good, bots: func(context.Context) ([]botapi.Bot, error) { return twoBots, nilWrong() }}}
		}, "NilErrors", "the client: 500"},
		{"does not return when its context is cancelled", func() Store {
			return Store{Bots: patched{BotStore: good, byUID: func(ctx context.Context, uid string) (botapi.Bot, error) {
				if ctx.Err() != nil {
					select {}
				}
				return good.BotByUID(ctx, uid)
			}}}
		}, "Cancellation", "the call has not returned"},
		{"says that a bot is not there when it was cancelled", func() Store {
			return Store{Bots: patched{BotStore: good, bySlug: func(ctx context.Context, slug string) (botapi.Bot, error) {
				if ctx.Err() != nil {
					return botapi.Bot{}, botapi.ErrBotNotFound
				}
				return good.BotBySlug(ctx, slug)
			}}}
		}, "Cancellation", "an error of the backend is taken for an empty result"},
		{"keeps the error of a cancelled call", func() Store {
			var kept atomic.Pointer[error]
			return Store{Bots: patched{BotStore: good, bots: func(ctx context.Context) ([]botapi.Bot, error) {
				if err := ctx.Err(); err != nil {
					kept.Store(&err)
					return nil, err
				}
				if err := kept.Swap(nil); err != nil {
					return nil, *err
				}
				return twoBots, nil
			}}}
		}, "Cancellation", "a call whose context was cancelled before the call"},
		{"keeps the error of a cancelled call for a while", func() Store {
			var kept keptError
			return Store{Bots: patched{BotStore: good, bots: func(ctx context.Context) ([]botapi.Bot, error) {
				if err := kept.failure(ctx); err != nil {
					return nil, err
				}
				return twoBots, nil
			}}}
		}, "Cancellation", "a kept error"},
		{"lists with the context of another call", func() Store {
			var shared sharedLookup[[]botapi.Bot]
			return Store{Bots: patched{BotStore: good, bots: func(ctx context.Context) ([]botapi.Bot, error) {
				return shared.do(ctx, "", func() ([]botapi.Bot, error) { return good.Bots(ctx) })
			}}}
		}, "Cancellation", "calls share one lookup"},
		{"finds with the context of another call", func() Store {
			var shared sharedLookup[botapi.Bot]
			return Store{Bots: patched{BotStore: good, bySlug: func(ctx context.Context, slug string) (botapi.Bot, error) {
				return shared.do(ctx, slug, func() (botapi.Bot, error) { return good.BotBySlug(ctx, slug) })
			}}}
		}, "Cancellation", "calls share one lookup"},
		{"keeps a lock after a cancelled call", func() Store {
			var mu sync.Mutex
			return Store{Bots: patched{BotStore: good, bots: func(ctx context.Context) ([]botapi.Bot, error) {
				if ctx.Done() == nil {
					return twoBots, nil
				}
				mu.Lock()
				time.Sleep(time.Millisecond)
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				mu.Unlock()
				return twoBots, nil
			}}}
		}, "Cancellation", "the call has not returned"},
		{"keeps a lock when it finds nothing", func() Store {
			var mu sync.Mutex
			return Store{Bots: patched{BotStore: good, byUID: func(ctx context.Context, uid string) (botapi.Bot, error) {
				mu.Lock()
				bot, err := good.BotByUID(ctx, uid)
				if err == nil {
					mu.Unlock()
				}
				return bot, err
			}}}
		}, "NilErrors", "an earlier call, such as one that failed, found nothing"},
		{"returns the bot of another call", func() Store {
			var row atomic.Pointer[botapi.Bot]
			return Store{Bots: patched{BotStore: good, byUID: func(ctx context.Context, uid string) (botapi.Bot, error) {
				bot, err := good.BotByUID(ctx, uid)
				if err != nil {
					return bot, err
				}
				row.Store(&bot)
				time.Sleep(time.Millisecond)
				return *row.Load(), nil
			}}}
		}, "Concurrency", "at the same time as other calls"},
		{"changes a slice that it has returned", func() Store {
			var last atomic.Pointer[[]botapi.Bot]
			var mu sync.Mutex
			return Store{Bots: patched{BotStore: good, bots: func(context.Context) ([]botapi.Bot, error) {
				mu.Lock()
				defer mu.Unlock()
				if earlier := last.Load(); earlier != nil {
					(*earlier)[0] = botapi.Bot{}
				}
				list := slices.Clone(twoBots)
				last.Store(&list)
				return list, nil
			}}}
		}, "Concurrency", "Bots(ctx)"},
		{"is empty when its database is stopped", func() Store { return Store{Bots: good, Failing: storeOf(t)} }, "Failing", "the client: 200 []"},
		{"finds nothing when its database is stopped", func() Store {
			return Store{Bots: good, Failing: stopped{fmt.Errorf("looking up: %w", botapi.ErrBotNotFound)}}
		}, "Failing", "the client: 404"},
		{"finds nothing once its database was stopped", func() Store {
			var failed atomic.Bool
			return Store{Bots: good, Failing: patched{BotStore: stopped{errBackend}, bySlug: func(context.Context, string) (botapi.Bot, error) {
				if failed.Swap(true) {
					return botapi.Bot{}, botapi.ErrBotNotFound
				}
				return botapi.Bot{}, errBackend
			}}}
		}, "Failing", `BotBySlug(ctx, "helper") of Store.Failing, the second time`},
		{"responds with 404 when its database is stopped", func() Store { return Store{Bots: good, Failing: stopped{botapi.StatusError{Status: 404}}} }, "Failing", "is taken for an empty result"},
		{"responds with 401 when its database is stopped", func() Store { return Store{Bots: good, Failing: stopped{botapi.ErrInvalidKey}} }, "Failing", "clients would ask their users for another key"},
		{"responds with 422 when its database is stopped", func() Store { return Store{Bots: good, Failing: stopped{botapi.HTTPValidationError{}}} }, "Failing", "is taken for a mistake of the client"},
		{"has no status when its database is stopped", func() Store { return Store{Bots: good, Failing: stopped{&botapi.StatusError{Detail: "Try later"}}} }, "Failing", "a StatusError with the status 0"},
		{"ignores cancellation of a query", func() Store {
			return Store{Bots: good, Hanging: patched{BotStore: locked{}, bots: func(context.Context) ([]botapi.Bot, error) { select {} }}}
		}, "Hanging", "nothing within 2s"},
		{"has one query at a time", func() Store {
			var mu sync.Mutex
			return Store{Bots: good, Hanging: patched{BotStore: locked{}, bots: func(ctx context.Context) ([]botapi.Bot, error) {
				mu.Lock()
				defer mu.Unlock()
				return locked{}.Bots(ctx)
			}}}
		}, "Hanging", "a lock is held during a query"},
		{"finds nothing when a query is cancelled", func() Store {
			return Store{Bots: good, Hanging: patched{BotStore: locked{}, byUID: func(ctx context.Context, uid string) (botapi.Bot, error) {
				<-ctx.Done()
				return botapi.Bot{}, botapi.ErrBotNotFound
			}}}
		}, "Hanging", "an error of the backend is taken for an empty result"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if raceDetector && c.name == "changes a slice that it has returned" {
				t.Skip("it is a data race, which fails this test, too")
			}
			s := c.broken()
			s.Published = twoBots
			mustFail(t, storeChecks(s, brokenLimit), c.subtest, c.phrase)
		})
	}
}

// TestGoodStores has stores that do what they must, each in its own way.
func TestGoodStores(t *testing.T) {
	good := storeOf(t, twoBots...)
	byAccount := patched{BotStore: good, bots: func(ctx context.Context) ([]botapi.Bot, error) {
		if botapi.AccountFrom(ctx) != "acme" || botapi.RequestIDFrom(ctx) == "" {
			return nil, errors.New("the context is not that of a request")
		}
		return twoBots, ctx.Err()
	}}
	wrapping := patched{BotStore: good, byUID: func(ctx context.Context, uid string) (botapi.Bot, error) {
		bot, err := good.BotByUID(ctx, uid)
		if err != nil {
			err = &botapi.StatusError{Status: 404, Detail: "There is no such bot", Err: fmt.Errorf("looking up %q: %w", uid, err)}
		}
		return bot, err
	}}
	unavailable := &botapi.StatusError{Status: 503, Detail: "Try later", RetryAfter: time.Second, Err: errBackend}
	for name, s := range map[string]Store{
		"MemoryStore":       {Bots: good, Published: twoBots, Unpublished: []botapi.Bot{hiddenBot}, Failing: stopped{errBackend}, Hanging: locked{}},
		"empty MemoryStore": {Bots: new(botapi.MemoryStore), Unpublished: []botapi.Bot{hiddenBot}},
		"one slice for all": {Bots: patched{BotStore: good, bots: func(context.Context) ([]botapi.Bot, error) { return twoBots, nil }}, Published: twoBots, Failing: stopped{unavailable}},
		"a name that is not asked for": {Bots: patched{BotStore: good, byUID: func(ctx context.Context, uid string) (botapi.Bot, error) {
			if uid == "" {
				return botapi.Bot{}, errors.New(`invalid input syntax for type uuid: ""`)
			}
			return good.BotByUID(ctx, uid)
		}}, Published: twoBots, Unpublished: []botapi.Bot{{Slug: "hidden"}}},
		"a uid of another form, and a backend that hangs": {Bots: good, Published: twoBots, Hanging: patched{BotStore: locked{}, byUID: func(ctx context.Context, uid string) (botapi.Bot, error) {
			if !strings.HasPrefix(uid, "u") {
				return botapi.Bot{}, botapi.ErrBotNotFound // of which it asks nobody
			}
			return locked{}.BotByUID(ctx, uid)
		}}},
		"bots of an account":     {Bots: byAccount, Published: twoBots, Account: "acme"},
		"ErrBotNotFound wrapped": {Bots: wrapping, Published: twoBots},
		"names in two cases": {Bots: storeOf(t, botapi.Bot{UID: "A", Slug: "a", Name: "a", Model: "m"}, botapi.Bot{UID: "a", Slug: "A", Name: "A", Model: "m"}),
			Published: []botapi.Bot{{UID: "A", Slug: "a", Name: "a", Model: "m"}, {UID: "a", Slug: "A", Name: "A", Model: "m"}}},
	} {
		t.Run(name, func(t *testing.T) { TestStore(t, s) })
	}
}
