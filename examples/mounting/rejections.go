package mounting

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/botapi"
)

// CountRejections returns a botapi.Options.OnRequest that counts the requests that got an
// error, by what labels an operator can act on. Its labels are bounded: accounts, bots and
// routes are those of the application.
func CountRejections(to prometheus.Registerer) func(context.Context, botapi.RequestReport) {
	rejections := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "botapi_rejections_total", Help: "Requests that got an error."}, []string{"account", "bot", "route", "status"})
	to.MustRegister(rejections)
	return func(_ context.Context, r botapi.RequestReport) {
		if r.Status >= 400 {
			rejections.WithLabelValues(r.Account, r.Bot.Slug, r.Route, strconv.Itoa(r.Status)).Inc()
		}
	}
}
