module example.com/botapi/examples/quickstart/browser

go 1.26.0

require (
	example.com/botapi v0.0.0
	github.com/chromedp/cdproto v0.159.3
	github.com/chromedp/chromedp v0.23.0
	github.com/matryer/is v1.4.1
	github.com/yuin/goldmark v1.8.7
)

require (
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
	github.com/invopop/validation v0.8.0 // indirect
	golang.org/x/sync v0.25.0 // indirect
)

replace example.com/botapi => ../../..
