package service

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi/examples/production/internal/logtest"
	"example.com/botapi/examples/production/internal/telemetry"
	"github.com/matryer/is"
)

// TestDatabaseDownAtStart has a replica wait for its database for a minute, and
// check it each second: it logs that every ten seconds.
func TestDatabaseDownAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var log logtest.Log
		logger := telemetry.NewLogger(&log, slog.LevelInfo, ClientFrom)
		var r readiness
		for range 60 {
			r.saw(errors.New("connection refused"), logger)
			time.Sleep(databasePeriod)
		}
		synctest.Wait()
		is.Equal(strings.Count(log.String(), `"msg":"not ready yet","error":"connection refused","times":`), 7) // the last one as the minute ends
		r.saw(nil, logger)
		is.True(strings.HasSuffix(log.String(), `"msg":"ready"}`+"\n"))
	})
}
