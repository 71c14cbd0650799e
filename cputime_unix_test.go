//go:build unix

package botapi

import (
	"syscall"
	"time"
)

// cpuTime is the processor time that this process has used: unlike the time on
// the clock, it does not depend on what else the machine does.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
