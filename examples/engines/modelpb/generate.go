// Package modelpb is the Go code of model.proto.
package modelpb

//go:generate ./generate.sh
