package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// A duration is that of a flag. It may begin with days of 24 hours: 90d, 36h or
// 1d12h.
type duration time.Duration

const day = 24 * time.Hour

func (d *duration) UnmarshalText(text []byte) error {
	parsed, ok := parseDuration(string(text))
	if !ok {
		return fmt.Errorf("%q is not a duration like 90d, 36h or 1d12h", text)
	}
	*d = duration(parsed)
	return nil
}

func parseDuration(text string) (time.Duration, bool) {
	unsigned, isNegative := strings.CutPrefix(text, "-")
	number, clock, hasDays := strings.Cut(unsigned, "d")
	if !hasDays {
		parsed, err := time.ParseDuration(text)
		return parsed, err == nil
	}
	days, err := strconv.ParseUint(number, 10, 64)
	if err != nil || days > uint64(math.MaxInt64/day) || strings.HasPrefix(clock, "+") || strings.HasPrefix(clock, "-") {
		return 0, false
	}
	parsed := time.Duration(days) * day
	if clock != "" {
		rest, err := time.ParseDuration(clock)
		if err != nil || rest > math.MaxInt64-parsed {
			return 0, false
		}
		parsed += rest
	}
	if isNegative {
		parsed = -parsed
	}
	return parsed, true
}
