package main

import (
	"fmt"
	"time"

	"github.com/prometheus/common/model"
)

// A duration is that of a flag. It is not negative, and may have days of 24 hours: 90d,
// 36h or 1d12h.
type duration time.Duration

func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := model.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration like 90d, 36h or 1d12h", text)
	}
	*d = duration(parsed)
	return nil
}
