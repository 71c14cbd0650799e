package eliza

import (
	"strings"
	"testing"

	"github.com/matryer/is"
)

func TestPatternMatch(t *testing.T) {
	for _, c := range []struct {
		form, words string
		parts       string // joined by "/"; "no" when the pattern does not fit
	}{
		{"hello", "Hello", ""},
		{"hello", "hello there", "no"},
		{"*", "", ""},
		{"*", "anything at all", "anything at all"},
		{"+", "", "no"},
		{"?", "one", "one"},
		{"?", "one two", "no"},
		{"* I am +", "well i am so tired", "well/so tired"},
		{"* I am +", "what I am", "no"},
		{"* my mother|father +", "My Father sleeps", "/father/sleeps"},
		{"* you + me *", "you always hurt me", "/always hurt/"},
		{"* you + me *", "you me and me again", "/me and/again"},
		{"* a b *", "a a b", "a/"},
		{"+ is +", "what is is is", "what/is is"},
		{"* my ? ?", "take my old car", "take/old/car"},
		{"* x * x", "x y x x", "/y x"}, // the last gap grows
		{"* x * x * y", strings.Repeat("x ", 40), "no"},
	} {
		t.Run(c.form+" on "+c.words, func(t *testing.T) {
			is := is.New(t)
			parts, ok := parsePattern(c.form).match(strings.Fields(c.words))
			if !ok {
				is.Equal("no", c.parts)
				return
			}
			var joined []string
			for _, part := range parts {
				joined = append(joined, strings.Join(part, " "))
			}
			is.Equal(strings.Join(joined, "/"), c.parts)
		})
	}
}

func TestMirror(t *testing.T) {
	for _, c := range []struct{ said, back string }{
		{"my own mistakes", "your own mistakes"},
		{"what I am", "what you are"},
		{"I was there with you", "you were there with me"},
		{"you are like me", "I am like you"},
		{"you know", "I know"},
		{"you to help me", "me to help you"},
		{"because of you and your friends", "because of me and my friends"},
		{"are you angry with yourself", "am I angry with myself"},
		{"that is Mine", "that is yours"},
		{"Berlin", "Berlin"},
	} {
		t.Run(c.said, func(t *testing.T) {
			is := is.New(t)
			is.Equal(mirror(strings.Fields(c.said)), c.back)
		})
	}
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		message string
		clauses string // their words, each clause closed by "." or "?"
	}{
		{"", ""},
		{"?! ...", ""},
		{"I'm here, and you?", "I am here. and you?"},
		{"It is fine but I can’t sleep", "It is fine. I cannot sleep."},
		{"(see example.com) 3.5 “quoted” 'words'", "see example.com 3.5 quoted words."},
		{"one\ntwo", "one. two."},
		{"yes - no", "yes. no."},
		{"WHY ME", "why me."},
		{"I", "I."},
		{"a\x00b \xff c\u200bd", "ab cd."},
		{"你好？", "你好?"},
	} {
		t.Run(c.message, func(t *testing.T) {
			is := is.New(t)
			var clauses []string
			for _, clause := range read(c.message) {
				end := "."
				if clause.question {
					end = "?"
				}
				clauses = append(clauses, strings.Join(clause.words, " ")+end)
			}
			is.Equal(strings.Join(clauses, " "), c.clauses)
		})
	}
}
