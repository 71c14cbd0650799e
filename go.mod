module example.com/botapi

go 1.26.0

require (
	github.com/invopop/validation v0.8.0
	github.com/matryer/is v1.4.1
	golang.org/x/sync v0.25.0
)
