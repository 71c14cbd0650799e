package resume_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
)

// BenchmarkWithoutKey compares a chat without a key with the same chat of a service
// that does not use this package. Each iteration serves one of each, and "ratio" is
// that of their times:
//
//	go test -run '^$' -bench WithoutKey -count 5 ./examples/resume
func BenchmarkWithoutKey(b *testing.B) {
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
	if err != nil {
		b.Fatal(err)
	}
	model := words("Hello", " yourself")
	engine := resume.New(resume.Options{Engine: model})
	plain := botapi.New(botapi.Options{Bots: bots, Keys: acmeKeys, Engine: model})
	resuming := botapi.New(botapi.Options{Bots: bots, Keys: acmeKeys, Engine: engine, Routes: engine.Routes(), OnLimit: engine.OnLimit})
	var spent [2]time.Duration
	chat := func(i int) {
		r := request(b.Context(), "key", "", false)
		delete(r.Header, resume.Header)
		w := httptest.NewRecorder()
		began := time.Now()
		if i == 0 {
			plain.ServeHTTP(w, r)
		} else {
			resuming.ServeHTTP(w, r)
		}
		spent[i] += time.Since(began)
		if w.Code != 200 {
			b.Fatal(w.Code)
		}
	}
	allocations := func(i int) float64 { return testing.AllocsPerRun(1000, func() { chat(i) }) }
	more := allocations(1) - allocations(0)
	spent = [2]time.Duration{}
	for n := 0; b.Loop(); n++ {
		chat(n % 2)
		chat(1 - n%2)
	}
	b.ReportMetric(float64(spent[1])/float64(spent[0]), "ratio")
	b.ReportMetric(more, "more-allocs")
}
