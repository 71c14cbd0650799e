package service

import (
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/matryer/is"
)

func TestClientAddress(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}
	for name, c := range map[string]struct {
		peer      string
		forwarded []string
		want      string
	}{
		"nobody between":               {"192.0.2.1:1234", nil, "192.0.2.1"},
		"an untrusted peer":            {"192.0.2.1:1234", []string{"198.51.100.1"}, "192.0.2.1"},
		"a trusted proxy":              {"10.0.0.1:1234", []string{"192.0.2.1"}, "192.0.2.1"},
		"forged before the proxy":      {"10.0.0.1:1234", []string{"198.51.100.1, 192.0.2.1"}, "192.0.2.1"},
		"in two headers":               {"10.0.0.1:1234", []string{"198.51.100.1", "192.0.2.1"}, "192.0.2.1"},
		"two proxies":                  {"10.0.0.1:1234", []string{"198.51.100.1, 192.0.2.1, 10.0.0.2"}, "192.0.2.1"},
		"only proxies":                 {"10.0.0.1:1234", []string{"10.0.0.2"}, "10.0.0.2"},
		"a proxy without the header":   {"10.0.0.1:1234", nil, "10.0.0.1"},
		"no address":                   {"10.0.0.1:1234", []string{"192.0.2.1, unknown"}, "10.0.0.1"},
		"IPv6":                         {"[fd00::1]:1234", []string{"2001:db8::1"}, "2001:db8::1"},
		"IPv4 as IPv6":                 {"[::ffff:10.0.0.1]:1234", []string{"::ffff:192.0.2.1"}, "192.0.2.1"},
		"free text in an IPv6 address": {"10.0.0.1:1234", []string{"fe80::1%anything"}, "fe80::1"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = c.peer
			r.Header["X-Forwarded-For"] = c.forwarded
			is.Equal(clientAddress(r, trusted), c.want)
		})
	}
}
