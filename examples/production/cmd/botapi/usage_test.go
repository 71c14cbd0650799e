package main

import (
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestUsage(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	query(t, env, `
		INSERT INTO usage (id, ended_at, request_id, account, user_id, bot_uid, model, stream, status, complete,
			fragments, bytes, duration_ms, prompt_tokens, completion_tokens, tokens_estimated)
		SELECT 'r' || n, ended_at::timestamptz, 'r', account, '42', 'u1', 'm1', true, 200, complete, 3, 12, 1500, tokens, tokens, n = 2
		FROM (VALUES
			(1, '2026-01-30T23:59:59Z', 'acme', true, 9),
			(2, '2026-01-31T00:00:00Z', 'acme', true, 9),
			(3, '2026-01-31T23:59:59Z', 'acme', false, NULL),
			(4, '2026-01-31T12:00:00Z', 'Smith, Jones', true, NULL)) AS chats (n, ended_at, account, complete, tokens)`)

	is.Equal(command(t, "", env, "usage", "--from", "2026-01-30", "--to", "2026-01-31"), result{stdout: "" +
		"DAY         ACCOUNT       CHATS  COMPLETE  REJECTED  JOINS  BYTES  COUNTED  ESTIMATED  PROMPT TOKENS  COMPLETION TOKENS\n" +
		"2026-01-30  acme          1      1         0         0      12     1        0          9              9\n" +
		"2026-01-31  Smith, Jones  1      1         0         0      12     0        0          -              -\n" +
		"2026-01-31  acme          2      1         0         0      24     1        1          9              9\n"})
	smith := result{stdout: "" +
		"day,account,chats,complete,bytes,counted,prompt_tokens,completion_tokens,estimated,rejected,joins\n" +
		"2026-01-31,\"Smith, Jones\",1,1,12,0,,,0,0,0\n"}
	createKey(t, env, "Smith, Jones")
	is.Equal(command(t, "", env, "usage", "--to", "2026-01-31", "--account", "Smith, Jones", "--csv"), smith)
	is.Equal(command(t, "", env, "usage", "--to", "2026-01-31", "--account", "Smith", "--csv"), result{
		stdout: "day,account,chats,complete,bytes,counted,prompt_tokens,completion_tokens,estimated,rejected,joins\n",
		stderr: "botapi: note: the account \"Smith\" has no keys\n"})
	is.Equal(command(t, "", env, "usage", "show", "--from", "2026-02-01", "--to", "2026-02-28", "--csv"), result{stdout: "" +
		"day,account,chats,complete,bytes,counted,prompt_tokens,completion_tokens,estimated,rejected,joins\n"})

	query(t, env, `UPDATE usage SET ended_at = CASE id
		WHEN 'r1' THEN date_trunc('day', now(), 'UTC') - interval '3 days'
		ELSE date_trunc('day', now(), 'UTC') - interval '2 days 1 microsecond' END WHERE id IN ('r1', 'r2')`)
	query(t, env, `UPDATE usage SET ended_at = now() WHERE id IN ('r3', 'r4')`)
	r := command(t, "", env, "usage", "delete", "--keep-days", "2", "--batch", "1")
	is.Equal(r.code, 0)
	is.True(strings.HasPrefix(r.stdout, "deleted 2 records of before "))
	is.Equal(strings.Count(command(t, "", env, "usage", "--csv").stdout, "\n"), 3) // today's records
}
