package service

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// clientAddress is the address that a request comes from: the peer's or, if the
// peer is a trusted proxy, the last address in X-Forwarded-For that is not a
// trusted proxy. The rest of that header may be forged.
func clientAddress(r *http.Request, trusted []netip.Prefix) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	client := peer.Addr().Unmap()
	forwarded := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, text := range slices.Backward(forwarded) {
		if !isIn(trusted, client) {
			break
		}
		before, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			break
		}
		client = before.Unmap().WithZone("") // a zone is free text
	}
	return client.String()
}

func isIn(prefixes []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(address) })
}
