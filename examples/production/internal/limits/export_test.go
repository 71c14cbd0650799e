package limits

import (
	"context"
	"time"
)

// SetMinute shortens the minute of ChatsPerMinute. Call it before the first
// chat.
func (e *Engine) SetMinute(d time.Duration) { e.shared.window = d }

// SettleAgain settles a batch of this number, as if the response to it had been
// lost.
func (e *Engine) SettleAgain(number int64, account string, used int64) error {
	_, err := e.shared.settle(context.Background(), number, []entry{{account: account, used: used}})
	return err
}

// Seen is how many tokens of the day this replica knows of.
func (e *Engine) Seen(account string) int64 {
	_, tokens := e.tallies.seen(account)
	return tokens
}
