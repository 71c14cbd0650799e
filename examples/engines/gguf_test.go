package engines

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
)

// tinyModel returns a model of the llama architecture as a GGUF file. Its blocks do
// nothing, so each token determines the next one: after a question mark it generates
// tinyAnswer, after an exclamation mark " la di la di" without an end. A song of a single
// token would end: Ollama aborts an answer that repeats a token more than 30 times.
func tinyModel() []byte {
	const (
		width  = 64 // one dimension for each token that has a successor
		blocks = 2
	)
	tokens, kinds := tinyVocabulary()
	embed, output := matrix(width, len(tokens)), matrix(width, len(tokens))
	states := 0
	follows := func(token, next string) {
		embed.set(states, slices.Index(tokens, token), 1)
		output.set(states, slices.Index(tokens, next), 10)
		states++
	}
	last := "<0x3F>" // ?
	for _, token := range tinyAnswer {
		follows(last, token)
		last = token
	}
	follows(last, "</s>")
	follows("<0x21>", "▁la") // !
	follows("▁la", "▁di")
	follows("▁di", "▁la")

	tensors := []tensor{{"token_embd.weight", embed}, {"output.weight", output}, {"output_norm.weight", ones(width)}}
	for b := range blocks {
		name := func(layer string) string { return fmt.Sprintf("blk.%d.%s.weight", b, layer) }
		tensors = append(tensors,
			tensor{name("attn_norm"), ones(width)}, tensor{name("ffn_norm"), ones(width)},
			tensor{name("attn_q"), matrix(width, width)}, tensor{name("attn_k"), matrix(width, width)},
			tensor{name("attn_v"), matrix(width, width)}, tensor{name("attn_output"), matrix(width, width)},
			tensor{name("ffn_gate"), matrix(width, 2*width)}, tensor{name("ffn_up"), matrix(width, 2*width)},
			tensor{name("ffn_down"), matrix(2*width, width)})
	}
	return gguf([]keyValue{
		{"general.architecture", "llama"},
		{"general.file_type", uint32(0)}, // F32
		{"llama.context_length", uint32(1 << 14)},
		{"llama.embedding_length", uint32(width)},
		{"llama.block_count", uint32(blocks)},
		{"llama.feed_forward_length", uint32(2 * width)},
		{"llama.attention.head_count", uint32(4)},
		{"llama.attention.head_count_kv", uint32(4)},
		{"llama.attention.layer_norm_rms_epsilon", float32(1e-5)},
		{"llama.rope.dimension_count", uint32(width / 4)},
		{"tokenizer.ggml.model", "llama"}, // SentencePiece
		{"tokenizer.ggml.tokens", tokens},
		{"tokenizer.ggml.scores", make([]float32, len(tokens))},
		{"tokenizer.ggml.token_type", kinds},
		{"tokenizer.ggml.unknown_token_id", uint32(0)},
		{"tokenizer.ggml.bos_token_id", uint32(1)},
		{"tokenizer.ggml.eos_token_id", uint32(2)},
	}, tensors)
}

// tinyAnswer is " Once upon ü世界👋." in tokens. Many tokens are single bytes.
var tinyAnswer = []string{
	"▁Once", "▁upon", "▁",
	"<0xC3>", "<0xBC>", "<0xE4>", "<0xB8>", "<0x96>", "<0xE7>", "<0x95>", "<0x8C>", "<0xF0>", "<0x9F>", "<0x91>", "<0x8B>", "<0x2E>",
}

const tinyText = " Once upon ü世界👋."

func tinyVocabulary() (tokens []string, kinds []int32) {
	const normal, unknown, control, oneByte = 1, 2, 3, 6
	tokens, kinds = []string{"<unk>", "<s>", "</s>"}, []int32{unknown, control, control}
	for b := range 256 {
		tokens, kinds = append(tokens, fmt.Sprintf("<0x%02X>", b)), append(kinds, oneByte)
	}
	for _, token := range []string{"▁Once", "▁upon", "▁la", "▁di", "▁"} {
		tokens, kinds = append(tokens, token), append(kinds, normal)
	}
	return tokens, kinds
}

// weights is a matrix, or a vector if rows is 0.
type weights struct {
	width, rows int
	values      []float32
}

func matrix(width, rows int) weights             { return weights{width, rows, make([]float32, width*rows)} }
func (w weights) set(column, row int, v float32) { w.values[row*w.width+column] = v }
func ones(width int) weights                     { return weights{width, 0, slices.Repeat([]float32{1}, width)} }

type tensor struct {
	name string
	weights
}

type keyValue struct {
	name  string
	value any
}

// gguf encodes a file in version 3 of the format.
func gguf(meta []keyValue, tensors []tensor) []byte {
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			if text, ok := v.(string); ok {
				binary.Write(&b, binary.LittleEndian, uint64(len(text)))
				b.WriteString(text)
				continue
			}
			binary.Write(&b, binary.LittleEndian, v)
		}
	}
	const u32, i32, f32, text, array = uint32(4), uint32(5), uint32(6), uint32(8), uint32(9)
	b.WriteString("GGUF")
	put(uint32(3), uint64(len(tensors)), uint64(len(meta)))
	for _, m := range meta {
		put(m.name)
		switch v := m.value.(type) {
		case string:
			put(text, v)
		case uint32:
			put(u32, v)
		case float32:
			put(f32, v)
		case []string:
			put(array, text, uint64(len(v)))
			for _, s := range v {
				put(s)
			}
		case []float32:
			put(array, f32, uint64(len(v)), v)
		case []int32:
			put(array, i32, uint64(len(v)), v)
		}
	}
	offset := uint64(0)
	for _, t := range tensors {
		dimensions := []uint64{uint64(t.width)}
		if t.rows > 0 {
			dimensions = append(dimensions, uint64(t.rows))
		}
		put(t.name, uint32(len(dimensions)), dimensions, uint32(0), offset) // 0: F32
		offset += uint64(4 * len(t.values))                                 // a multiple of 64 floats, so that all tensors are aligned to 32
	}
	b.Write(make([]byte, (32-b.Len()%32)%32))
	for _, t := range tensors {
		put(t.values)
	}
	return b.Bytes()
}
