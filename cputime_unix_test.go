//go:build unix

package botapi

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time that this process has used. Unlike wall-clock time, it does
// not depend on what other processes do.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
