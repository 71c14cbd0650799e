package botapi

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/invopop/validation"
)

// Bot is one conversational bot as clients see it.
//
// UID and Slug each name the bot in a chat request. They are any text without
// white space and control characters, and are compared exactly.
//
// Encoded as JSON, the members are uid, slug, name, description,
// welcome_message, model and avatar_url; an empty AvatarURL is null. Text that
// is not UTF-8 is sent with U+FFFD in place of each bad byte.
type Bot struct {
	UID            string `json:"uid"`
	Slug           string `json:"slug"`
	Name           string `json:"name"`
	Description    string `json:"description"`
	WelcomeMessage string `json:"welcome_message"`
	Model          string `json:"model"`
	AvatarURL      string `json:"avatar_url"`
}

// MarshalJSON writes the bot as an element of the bot list.
func (b Bot) MarshalJSON() ([]byte, error) {
	return appendBot(nil, &b), nil
}

// Validate reports what a bot lacks to be listed: UID, Slug, Name and Model
// are required, UID and Slug have no white space and no control characters,
// and an AvatarURL is an absolute URL. The error is a validation.Errors, keyed
// by the JSON names of the fields.
//
// The handler does not call it: a store decides what it publishes. MemoryStore
// calls it for every bot it is given.
func (b Bot) Validate() error {
	return validation.ValidateStruct(&b,
		validation.Field(&b.UID, validation.Required, identifier),
		validation.Field(&b.Slug, validation.Required, identifier),
		validation.Field(&b.Name, validation.Required),
		validation.Field(&b.Model, validation.Required),
		validation.Field(&b.AvatarURL, absoluteURL),
	)
}

var (
	identifier = validation.NewStringRuleWithError(isIdentifier,
		validation.NewError("bot_identifier", "must not contain white space or control characters"))
	absoluteURL = validation.NewStringRuleWithError(isAbsoluteURL,
		validation.NewError("bot_avatar_url", "must be an absolute URL"))
)

func isIdentifier(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	})
}

func isAbsoluteURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.IsAbs()
}

// BotStore knows the bots that are published. The host provides it; the
// handler calls it from many goroutines at once.
//
// Every method gets a context that ends when the client goes away, and that
// answers [AccountFrom] and [RequestIDFrom]: a store may show each account its
// own bots. The handler sets no deadline of its own on a call.
//
// Errors become answers:
//   - an error that is [ErrBotNotFound]: 404 "Bot not found";
//   - a [StatusError]: its own status and text, for instance a 503 while a
//     database is down;
//   - any other error, and a panic: 500, logged with the request id and not
//     shown to the client.
type BotStore interface {
	// Bots returns the published bots in listing order; none is an empty list.
	// It is called once for each listing. The handler reads the slice before
	// the request ends, and neither changes nor keeps it.
	Bots(ctx context.Context) ([]Bot, error)

	// BotByUID returns the published bot with exactly this uid, or
	// ErrBotNotFound. The uid is what a client sent: any text that is not
	// empty.
	BotByUID(ctx context.Context, uid string) (Bot, error)

	// BotBySlug returns the published bot with exactly this slug, or
	// ErrBotNotFound. A request that names both a uid and a slug asks for
	// both, and is refused with 404 when they are two bots.
	BotBySlug(ctx context.Context, slug string) (Bot, error)
}

// ErrBotNotFound is what a [BotStore] returns, alone or wrapped, for a bot that
// is not published. The client gets a 404.
var ErrBotNotFound = errors.New("botapi: bot not found")

// MemoryStore is a [BotStore] that holds its bots in memory. It is safe for
// concurrent use, also while Replace runs: every call sees either the old set
// or the new one. Its zero value is an empty store.
type MemoryStore struct {
	bots atomic.Pointer[botSet]
}

// A botSet is never changed after it is made.
type botSet struct {
	listed []Bot
	byUID  map[string]int // index into listed
	bySlug map[string]int
}

var _ BotStore = (*MemoryStore)(nil)

// NewMemoryStore returns a store of these bots, listed in this order. It
// refuses a bot that is not valid and a uid or slug that stands twice; the
// error says which bot and which field.
func NewMemoryStore(bots ...Bot) (*MemoryStore, error) {
	store := new(MemoryStore)
	if err := store.Replace(bots...); err != nil {
		return nil, err
	}
	return store, nil
}

// Replace swaps the whole set for these bots at once. On an error, which is as
// for [NewMemoryStore], nothing has changed. Requests that are being answered
// go on with the bot they have found.
func (s *MemoryStore) Replace(bots ...Bot) error {
	set, err := newBotSet(bots)
	if err != nil {
		return err
	}
	s.bots.Store(set)
	return nil
}

func newBotSet(bots []Bot) (*botSet, error) {
	set := &botSet{
		listed: slices.Clone(bots),
		byUID:  make(map[string]int, len(bots)),
		bySlug: make(map[string]int, len(bots)),
	}
	for i, bot := range set.listed {
		if err := bot.Validate(); err != nil {
			return nil, fmt.Errorf("botapi: bot %d (slug %q): %w", i, bot.Slug, err)
		}
		if first, taken := set.byUID[bot.UID]; taken {
			return nil, fmt.Errorf("botapi: bot %d (slug %q): uid: %q is also the uid of bot %d", i, bot.Slug, bot.UID, first)
		}
		if first, taken := set.bySlug[bot.Slug]; taken {
			return nil, fmt.Errorf("botapi: bot %d (slug %q): slug: bot %d has it too", i, bot.Slug, first)
		}
		set.byUID[bot.UID] = i
		set.bySlug[bot.Slug] = i
	}
	return set, nil
}

// Bots returns the listing. The slice is shared: it must not be changed.
func (s *MemoryStore) Bots(context.Context) ([]Bot, error) {
	set := s.bots.Load()
	if set == nil {
		return nil, nil
	}
	return slices.Clip(set.listed), nil
}

// BotByUID returns the bot with this uid, or ErrBotNotFound.
func (s *MemoryStore) BotByUID(_ context.Context, uid string) (Bot, error) {
	set := s.bots.Load()
	if set == nil {
		return Bot{}, ErrBotNotFound
	}
	return set.bot(set.byUID, uid)
}

// BotBySlug returns the bot with this slug, or ErrBotNotFound.
func (s *MemoryStore) BotBySlug(_ context.Context, slug string) (Bot, error) {
	set := s.bots.Load()
	if set == nil {
		return Bot{}, ErrBotNotFound
	}
	return set.bot(set.bySlug, slug)
}

func (set *botSet) bot(index map[string]int, name string) (Bot, error) {
	i, ok := index[name]
	if !ok {
		return Bot{}, ErrBotNotFound
	}
	return set.listed[i], nil
}
