package main

import (
	"testing"

	"github.com/matryer/is"
)

func TestLimitsCommands(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	is.Equal(command(t, "", env, "limits", "set", "--chats-per-minute", "60", "--chats-at-once", "5"), result{})
	is.Equal(command(t, "", env, "limits", "set", "--account", "acme", "--tokens-per-day", "1"), result{
		stderr: "botapi: note: the account \"acme\" has no keys\n"})
	createKey(t, env)
	is.Equal(command(t, "", env, "limits", "set", "--account", "acme", "--tokens-per-day", "0"), result{})
	is.Equal(command(t, "", env, "limits", "list").stdout, ""+
		"ACCOUNT           CHATS PER MINUTE  TOKENS PER DAY  CHATS AT ONCE\n"+
		"(everybody else)  60                -               5\n"+
		"acme              -                 0               -\n")
	is.Equal(command(t, "", env, "limits", "remove", "--account", "acme"), result{})
	is.Equal(command(t, "", env, "limits", "remove"), result{})
	is.Equal(command(t, "", env, "limits", "remove"), result{code: 2, stderr: "botapi: there are no limits to remove\n"})
	is.Equal(command(t, "", env, "limits", "set", "--chats-at-once=-1").code, 2)
	is.Equal(command(t, "", env, "limits", "set", "--account", "acme\nother", "--chats-at-once", "1").code, 2)
	is.Equal(command(t, "", env, "limits", "list").stdout, "ACCOUNT  CHATS PER MINUTE  TOKENS PER DAY  CHATS AT ONCE\n")
}
