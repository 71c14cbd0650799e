package botapi

import (
	"net/http"
	"slices"
	"sync/atomic"
)

// listBots answers GET /v1/bots.
func (x *exchange) listBots() error {
	bots, err := x.bots.Bots(x.ctx)
	if err != nil {
		return err
	}
	_ = x.send(http.StatusOK, x.listed.encode(bots)) // a failed write: nobody is left to tell
	return nil
}

// A listing keeps the last list and its encoding: while a store returns the
// same bots, comparing them is all that a listing costs. Stores that show each
// account other bots only lose the comparison.
type listing struct {
	last atomic.Pointer[encodedBots]
}

// encodedBots are never changed after they are made.
type encodedBots struct {
	bots []Bot // a copy: the store may reuse its slice
	body []byte
}

func (l *listing) encode(bots []Bot) []byte {
	if last := l.last.Load(); last != nil && slices.Equal(last.bots, bots) {
		return last.body
	}
	body := appendBots(nil, bots)
	l.last.Store(&encodedBots{slices.Clone(bots), body})
	return body
}

func appendBots(dst []byte, bots []Bot) []byte {
	dst = append(dst, '[')
	for i := range bots {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendBot(dst, &bots[i])
	}
	return append(dst, ']')
}

func appendBot(dst []byte, bot *Bot) []byte {
	dst = appendString(append(dst, `{"uid":`...), bot.UID)
	dst = appendString(append(dst, `,"slug":`...), bot.Slug)
	dst = appendString(append(dst, `,"name":`...), bot.Name)
	dst = appendString(append(dst, `,"description":`...), bot.Description)
	dst = appendString(append(dst, `,"welcome_message":`...), bot.WelcomeMessage)
	dst = appendString(append(dst, `,"model":`...), bot.Model)
	dst = append(dst, `,"avatar_url":`...)
	if bot.AvatarURL == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, bot.AvatarURL)
	}
	return append(dst, '}')
}
