//go:build race

package botapitest

func init() { raceDetector = true }
