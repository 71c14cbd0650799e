package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"

	"example.com/botapi"
)

const announcement = `Serving %d bots at %s with the key %s

Talk to them in a browser:
%s

List the bots:
%s

Ask the first one:
%s

Ask it for a stream:
%s

Base URLs for other clients, with the same key; their model is %s, or another slug of the list:
OpenAI      %s
useChat     %s
Ollama      %s
`

// announce prints the address of the service, a link to the chat page, commands
// to try, and the base URL for each other protocol. The link carries the key in its fragment, which browsers do
// not send to a server; the page removes it from the address.
func (s settings) announce(w io.Writer, address net.Addr, store botapi.BotStore) error {
	bots, err := store.Bots(context.Background())
	if err != nil {
		return err
	}
	base := "http://" + reachable(address)
	key := "-H " + quote("Authorization: Bearer "+s.key)
	_, err = fmt.Fprintf(w, announcement, len(bots), base, s.key,
		base+"/#key="+url.QueryEscape(s.key),
		"curl "+base+"/v1/bots "+key,
		"curl "+base+"/v1/chat "+key+" -d "+quote(chatBody(bots[0].Slug, firstQuestion(bots[0]), false)),
		"curl -N "+base+"/v1/chat "+key+" -d "+quote(chatBody(bots[0].Slug, firstQuestion(bots[0]), true)),
		bots[0].Slug,
		base+"/v1",
		base+"/api/chat?bot="+url.QueryEscape(bots[0].Slug),
		base+"/ollama")
	if s.metrics && err == nil {
		_, err = fmt.Fprintln(w, "\nCounts of requests and tokens:\ncurl "+base+"/metrics")
	}
	return err
}

// reachable returns an address that a client on this machine can connect to.
func reachable(address net.Addr) string {
	tcp, ok := address.(*net.TCPAddr)
	if ok && tcp.IP.IsUnspecified() {
		return net.JoinHostPort("localhost", strconv.Itoa(tcp.Port))
	}
	return address.String()
}

func chatBody(slug, prompt string, stream bool) string {
	body, _ := json.Marshal(struct { // cannot fail
		BotSlug string `json:"bot_slug"`
		Prompt  string `json:"prompt"`
		Stream  bool   `json:"stream"`
	}{slug, prompt, stream})
	return string(body)
}

// quote quotes text as one shell word.
func quote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
