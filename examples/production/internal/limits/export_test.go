package limits

import "time"

// SetMinute makes the minute of ChatsPerMinute shorter, before the first chat.
func (e *Engine) SetMinute(d time.Duration) { e.shared.window = d }
