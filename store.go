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
	"unicode/utf8"

	"github.com/invopop/validation"
)

// Bot is one conversational bot as clients see it.
//
// UID and Slug each identify the bot in a chat request. They are UTF-8 without
// white space or control characters, and are compared exactly.
//
// The JSON fields are uid, slug, name, description, welcome_message, model and
// avatar_url; an empty AvatarURL is null. Invalid UTF-8 is encoded as U+FFFD, one
// for each byte.
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
func (b Bot) MarshalJSON() ([]byte, error) { return appendBot(nil, &b), nil }

// Validate reports what is wrong with a bot: UID, Slug, Name and Model are
// required, UID and Slug are UTF-8 without white space or control characters, and
// an AvatarURL must be absolute. The error is a validation.Errors, keyed by the
// JSON names of the fields.
//
// The handler does not validate what a store returns. [MemoryStore] validates
// every bot it is given.
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
		validation.NewError("bot_identifier", "must be UTF-8 without white space or control characters"))
	absoluteURL = validation.NewStringRuleWithError(isAbsoluteURL,
		validation.NewError("bot_avatar_url", "must be an absolute URL"))
)

// isIdentifier is true of the empty string: whether one is required is decided
// elsewhere.
func isIdentifier(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	})
}

func isAbsoluteURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.IsAbs()
}

// BotStore provides the published bots. It must be safe for concurrent use.
// The package examples/botapitest tests an implementation.
//
// The context of each call is that of the request. It carries the account
// ([AccountFrom]), by which a store may show each account its own bots, and the
// request id ([RequestIDFrom]), and is cancelled when the client disconnects. The
// handler sets no deadline.
//
// An error decides the response, as that of a verifier or an engine does:
//   - a [StatusError]: its own status and detail, for instance 503 while a
//     database is down;
//   - [ErrBotNotFound]: 404 "Bot not found";
//   - any other, and a panic: as under Errors in the package's documentation, mostly
//     a 500. It is logged with the request id and not shown to the client.
//
// The first two may be wrapped.
type BotStore interface {
	// Bots returns the published bots in listing order; nil is an empty list. It
	// is called once for each list request. The handler neither modifies the
	// slice nor uses it after the request: a store may return the same one each
	// time.
	Bots(ctx context.Context) ([]Bot, error)

	// BotByUID returns the published bot with exactly this uid, or
	// ErrBotNotFound. The uid comes from the client; it is not empty and has no
	// white space or control characters.
	BotByUID(ctx context.Context, uid string) (Bot, error)

	// BotBySlug is BotByUID for slugs. For a request with both a uid and a slug, it is
	// called after BotByUID has returned a bot; if both bots have different UIDs, the
	// response is a 404.
	BotBySlug(ctx context.Context, slug string) (Bot, error)
}

// ErrBotNotFound is returned by a [BotStore], alone or wrapped, for a bot that is
// not published. The client gets a 404.
var ErrBotNotFound = errors.New("botapi: bot not found")

// MemoryStore is a [BotStore] that holds its bots in memory. It is safe for
// concurrent use; while Replace runs, each call sees either the old set or the
// new one. The zero value is an empty store.
type MemoryStore struct {
	bots atomic.Pointer[botSet]
}

// A botSet is immutable.
type botSet struct {
	listed []Bot
	byUID  map[string]int // index into listed
	bySlug map[string]int
}

var _ BotStore = (*MemoryStore)(nil)

// NewMemoryStore returns a store of these bots, listed in this order. It fails
// if a bot is not valid or if two have the same uid or slug; the error names the
// bot and the field.
func NewMemoryStore(bots ...Bot) (*MemoryStore, error) {
	store := new(MemoryStore)
	if err := store.Replace(bots...); err != nil {
		return nil, err
	}
	return store, nil
}

// Replace replaces the whole set atomically. It fails as [NewMemoryStore] does,
// and then changes nothing. Chats in progress keep the bot they began with.
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

// Bots returns the listing as a new slice, which the caller owns.
func (s *MemoryStore) Bots(context.Context) ([]Bot, error) {
	return slices.Clone(s.set().listed), nil
}

// BotByUID returns the bot with this uid, or ErrBotNotFound.
func (s *MemoryStore) BotByUID(_ context.Context, uid string) (Bot, error) {
	set := s.set()
	return set.bot(set.byUID, uid)
}

// BotBySlug returns the bot with this slug, or ErrBotNotFound.
func (s *MemoryStore) BotBySlug(_ context.Context, slug string) (Bot, error) {
	set := s.set()
	return set.bot(set.bySlug, slug)
}

func (s *MemoryStore) set() *botSet {
	if set := s.bots.Load(); set != nil {
		return set
	}
	return new(botSet)
}

func (set *botSet) bot(index map[string]int, name string) (Bot, error) {
	i, ok := index[name]
	if !ok {
		return Bot{}, ErrBotNotFound
	}
	return set.listed[i], nil
}
