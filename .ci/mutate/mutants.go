package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A mutant is one small change of the package: the text from start to end is
// replaced.
type mutant struct {
	number       int // of its switch; 0 if it has none, and is built by itself
	file         string
	line, column int
	function     string
	source       []byte // of the file
	start, end   int
	replacement  string

	killedBy string // "" while it lives
}

// change is what a mutant does to the lines that it stands in.
func (m *mutant) change() string {
	return m.lines(string(m.source[m.start:m.end])) + " → " + cmp.Or(m.lines(m.replacement), "left out")
}

// key names a mutant also when lines move.
func (m *mutant) key() string { return m.file + ": " + m.function + ": " + m.change() }

// lines are the lines of the mutant with another text in its place, on one.
func (m *mutant) lines(text string) string {
	begin := bytes.LastIndexByte(m.source[:m.start], '\n') + 1
	end := m.end + bytes.IndexByte(m.source[m.end:], '\n')
	whole := string(m.source[begin:m.start]) + text + string(m.source[m.end:end])
	return strings.Join(strings.Fields(whole), " ")
}

func (m *mutant) String() string {
	return fmt.Sprintf("%s:%d:%d in %s\n- %s\n+ %s\n", m.file, m.line, m.column, m.function,
		m.lines(string(m.source[m.start:m.end])), m.lines(m.replacement))
}

// mutated is the file as the mutant has it.
func (m *mutant) mutated() []byte {
	return slices.Concat(m.source[:m.start], []byte(m.replacement), m.source[m.end:])
}

// A source is one file of the package, with all its mutants behind switches.
type source struct {
	name     string
	text     []byte
	inserts  []insert
	packages map[string]string // the names of its imports, by path
}

// An insert is text that goes in at one place, or replaces an operator.
type insert struct {
	at, length int
	closing    bool // belongs to what ends here
	text       string
}

// switched is the file with the inserts. At one place, what ends there comes
// before what begins, the inner before the outer.
func (s *source) switched() []byte {
	inserts := slices.Clone(s.inserts)
	slices.SortStableFunc(inserts, func(a, b insert) int {
		switch {
		case a.at != b.at:
			return a.at - b.at
		case a.closing == b.closing:
			return 0
		case a.closing:
			return -1
		}
		return 1
	})
	for i := 0; i < len(inserts); { // the order of those that end was that in which they begin
		j := i
		for j < len(inserts) && inserts[j].closing && inserts[j].at == inserts[i].at {
			j++
		}
		slices.Reverse(inserts[i:j])
		i = max(j, i+1)
	}
	var b bytes.Buffer
	at := 0
	for _, in := range inserts {
		b.Write(s.text[at:in.at])
		b.WriteString(in.text)
		at = in.at + in.length
	}
	b.Write(s.text[at:])
	return b.Bytes()
}

// findMutants parses and checks the package in the folder.
func findMutants(dir string) ([]*source, []*mutant, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, nil, err
	}
	f := &finder{files: token.NewFileSet(), info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}}
	var parsed []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, nil, err
		}
		file, err := parser.ParseFile(f.files, filepath.Base(name), text, parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		parsed = append(parsed, file)
		f.sources = append(f.sources, &source{name: filepath.Base(name), text: text, packages: imports(file)})
	}
	lookUp, err := exports(dir)
	if err != nil {
		return nil, nil, err
	}
	config := types.Config{Importer: importer.ForCompiler(f.files, "gc", lookUp)}
	if f.pkg, err = config.Check(parsed[0].Name.Name, f.files, parsed, f.info); err != nil {
		return nil, nil, err
	}
	for i, file := range parsed {
		f.source = f.sources[i]
		f.file(file)
	}
	return f.sources, f.mutants, nil
}

func imports(file *ast.File) map[string]string {
	packages := map[string]string{}
	for _, spec := range file.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		packages[path] = filepath.Base(strings.TrimSuffix(path, "/v2"))
		if spec.Name != nil {
			packages[path] = spec.Name.Name
		}
	}
	return packages
}

// exports has the types of what the package imports from the compiler.
func exports(dir string) (importer.Lookup, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", ".")
	list.Dir, list.Stderr = dir, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		files[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }, nil
}

// A finder walks the syntax of the package. Every mutant gets an insert that
// switches it on, around the place where it stands.
type finder struct {
	files   *token.FileSet
	info    *types.Info
	pkg     *types.Package
	sources []*source
	mutants []*mutant
	number  int

	source   *source
	function string
	results  []string // the types of the results of the function that is walked
}

func (f *finder) offset(at token.Pos) int { return f.files.Position(at).Offset }

func (f *finder) text(node ast.Node) string {
	return string(f.source.text[f.offset(node.Pos()):f.offset(node.End())])
}

// add adds a mutant that replaces what stands from one place to another.
func (f *finder) add(from, to token.Pos, replacement string) (m *mutant) {
	at := f.files.Position(from)
	m = &mutant{file: f.source.name, line: at.Line, column: at.Column, function: f.function,
		source: f.source.text, start: at.Offset, end: f.offset(to), replacement: replacement}
	f.mutants = append(f.mutants, m)
	return m
}

// replace adds a mutant with a switch: before and after go around the node, and
// a %d in them is the number of the switch.
func (f *finder) replace(node ast.Node, replacement, before, after string) {
	f.number++
	f.add(node.Pos(), node.End(), replacement).number = f.number
	f.insert(node.Pos(), 0, false, f.numbered(before))
	f.insert(node.End(), 0, true, f.numbered(after))
}

func (f *finder) numbered(text string) string {
	return strings.ReplaceAll(text, "%d", fmt.Sprint(f.number))
}

func (f *finder) insert(at token.Pos, length int, closing bool, text string) {
	if text != "" {
		f.source.inserts = append(f.source.inserts, insert{f.offset(at), length, closing, text})
	}
}

func (f *finder) file(file *ast.File) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			f.function = d.Name.Name
			f.body(d.Type, d.Body)
		case *ast.GenDecl:
			f.function = d.Tok.String()
			f.values(d)
		}
	}
}

// values walks declarations of variables and constants.
func (f *finder) values(d *ast.GenDecl) {
	for _, spec := range d.Specs {
		v, ok := spec.(*ast.ValueSpec)
		if !ok {
			continue
		}
		for _, value := range v.Values {
			if d.Tok == token.CONST {
				f.constant(value)
			} else {
				f.walk(value)
			}
		}
	}
}

// constant adds mutants without a switch.
func (f *finder) constant(value ast.Expr) {
	ast.Inspect(value, func(node ast.Node) bool {
		if lit, ok := node.(*ast.BasicLit); ok {
			f.add(lit.Pos(), lit.End(), literalMutant(lit))
		}
		return true
	})
}

func literalMutant(lit *ast.BasicLit) string {
	if lit.Kind == token.STRING {
		return lit.Value[:1] + "~" + lit.Value[1:]
	}
	return "(" + lit.Value + "+1)"
}

func (f *finder) body(function *ast.FuncType, body *ast.BlockStmt) {
	outer := f.results
	f.results = nil
	if function.Results != nil {
		for _, field := range function.Results.List {
			for range max(len(field.Names), 1) {
				f.results = append(f.results, f.text(field.Type))
			}
		}
	}
	f.walk(body)
	f.results = outer
}

// walk adds the mutants of a node and of what it contains, the outer first.
func (f *finder) walk(node ast.Node) {
	var unread []ast.Expr
	ast.Inspect(node, func(node ast.Node) bool {
		if e, ok := node.(ast.Expr); ok && slices.Contains(unread, e) {
			return false
		}
		if e, ok := node.(ast.Expr); ok && f.info.Types[e].Value != nil && !f.isBool(e) {
			f.literals(e)
			return false
		}
		switch n := node.(type) {
		case *ast.FuncLit:
			f.body(n.Type, n.Body)
			return false
		case *ast.ArrayType, *ast.StructType, *ast.InterfaceType, *ast.FuncType:
			return false // a length is a constant
		case *ast.GenDecl:
			f.values(n)
			return false
		case *ast.BlockStmt:
			f.statements(n.List)
		case *ast.CaseClause:
			f.statements(n.Body)
		case *ast.CommClause:
			f.statements(n.Body)
		case *ast.ReturnStmt:
			if len(n.Results) > 1 { // what stands beside an error or a false is not read
				unread = append(unread, slices.DeleteFunc(slices.Clone(n.Results), func(e ast.Expr) bool { return !f.isZero(e) || f.isBool(e) })...)
			}
			f.conditions(n.Results)
		case *ast.AssignStmt:
			if f.text(n.Lhs[0]) != "_" {
				f.conditions(n.Rhs)
			}
		case *ast.CallExpr:
			if f.words(n) {
				return false
			}
			unread = append(unread, f.message(n))
			f.conditions(n.Args)
		case *ast.IfStmt:
			f.condition(n.Cond)
		case *ast.ForStmt:
			if n.Cond != nil {
				f.condition(n.Cond)
			}
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, clause := range n.Body.List {
					f.conditions(clause.(*ast.CaseClause).List)
				}
			}
		case *ast.CompositeLit:
			f.fields(n)
		case *ast.BinaryExpr:
			f.binary(n)
		}
		return true
	})
}

// words is whether a call only makes the words of an error. A test of those
// would say the same again.
func (f *finder) words(call *ast.CallExpr) bool {
	return slices.Contains([]string{"errors.New", "fmt.Errorf", "recovered", "panic"}, f.text(call.Fun))
}

// message is the words of a line in the log, among the arguments of a call.
func (f *finder) message(call *ast.CallExpr) ast.Expr {
	if method, ok := call.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(method.Sel.Name, "log") {
		for _, argument := range call.Args {
			if lit, ok := argument.(*ast.BasicLit); ok {
				return lit
			}
		}
	}
	return nil
}

// statements adds mutants without one of them.
func (f *finder) statements(list []ast.Stmt) {
	for _, statement := range list {
		switch s := statement.(type) {
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); ok && f.text(call.Fun) == "panic" {
				continue // where there is no return behind it
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || f.text(s.Lhs[0]) == "_" && isName(s.Rhs[0]) {
				continue
			}
		case *ast.ReturnStmt:
			f.zeroResults(s)
			if len(f.results) > 0 {
				continue
			}
		case *ast.IncDecStmt, *ast.DeferStmt, *ast.GoStmt, *ast.SendStmt, *ast.BranchStmt, *ast.RangeStmt:
		default:
			continue
		}
		if s, ok := statement.(*ast.BranchStmt); ok && s.Tok == token.FALLTHROUGH {
			continue
		}
		f.replace(statement, "", "if !mutantOn(%d) { ", " }")
	}
}

func isName(e ast.Expr) bool { _, ok := e.(*ast.Ident); return ok }

// zeroResults adds mutants that return zero values.
func (f *finder) zeroResults(s *ast.ReturnStmt) {
	if len(s.Results) == 1 && len(f.results) > 1 { // what another function returns
		zeros := make([]string, len(f.results))
		for i, t := range f.results {
			zeros[i] = "*new(" + t + ")"
		}
		all := "return " + strings.Join(zeros, ", ")
		f.replace(s, all, "if mutantOn(%d) { "+all+" }; ", "")
		return
	}
	for i := range s.Results {
		if f.isZero(s.Results[i]) || f.isBool(s.Results[i]) {
			continue
		}
		values := make([]string, len(s.Results))
		for j, result := range s.Results {
			values[j] = f.text(result)
		}
		values[i] = "*new(" + f.results[i] + ")"
		all := "return " + strings.Join(values, ", ")
		f.replace(s, all, "if mutantOn(%d) { "+all+" }; ", "")
	}
}

func (f *finder) isZero(e ast.Expr) bool {
	if lit, ok := e.(*ast.CompositeLit); ok {
		return len(lit.Elts) == 0
	}
	return slices.Contains([]string{"nil", "0", `""`, "false"}, f.text(e))
}

func (f *finder) isBool(e ast.Expr) bool {
	t := f.info.TypeOf(e)
	if t == nil {
		return false
	}
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsBoolean != 0
}

func (f *finder) conditions(list []ast.Expr) {
	for _, e := range list {
		if f.isBool(e) {
			f.condition(e)
		}
	}
}

// condition adds mutants of each part of a condition.
func (f *finder) condition(e ast.Expr) {
	switch c := e.(type) {
	case *ast.ParenExpr:
		f.condition(c.X)
	case *ast.UnaryExpr:
		f.negate(e)
	case *ast.BinaryExpr:
		switch c.Op {
		case token.LAND:
			f.ignore(c.X, "true", "(mutantOn(%d) || (", "))")
			f.ignore(c.Y, "true", "(mutantOn(%d) || (", "))")
		case token.LOR:
			f.ignore(c.X, "false", "(!mutantOn(%d) && (", "))")
			f.ignore(c.Y, "false", "(!mutantOn(%d) && (", "))")
		default:
			f.negate(e)
		}
	default:
		f.negate(e)
	}
}

func (f *finder) ignore(e ast.Expr, neutral, before, after string) {
	f.replace(e, neutral, before, after)
	f.condition(e)
}

func (f *finder) negate(e ast.Expr) {
	f.replace(e, "!("+f.text(e)+")", "(mutantOn(%d) != (", "))")
}

// fields adds mutants without one of the fields.
func (f *finder) fields(lit *ast.CompositeLit) {
	if _, ok := f.info.TypeOf(lit).Underlying().(*types.Struct); !ok {
		return
	}
	for _, element := range lit.Elts {
		field, ok := element.(*ast.KeyValueExpr)
		if !ok || f.isZero(field.Value) {
			continue
		}
		if f.isBool(field.Value) {
			f.condition(field.Value)
			continue
		}
		if name, ok := f.typeName(f.info.TypeOf(field.Value)); ok {
			f.replace(field.Value, "*new("+name+")", "mutantZero["+name+"](%d, ", ")")
		}
	}
}

// typeName is the name of a type in the file, unless it has none there.
func (f *finder) typeName(t types.Type) (name string, ok bool) {
	ok = true
	name = types.TypeString(types.Default(t), func(p *types.Package) string {
		if p == f.pkg {
			return ""
		}
		local, imported := f.source.packages[p.Path()]
		ok = ok && imported
		return local
	})
	return name, ok
}

var operators = map[token.Token]struct{ mutated, function string }{
	token.LSS: {"<=", "mutantLess(%d, "}, token.LEQ: {"<", "mutantLessOrEqual(%d, "},
	token.GTR: {">=", "!mutantLessOrEqual(%d, "}, token.GEQ: {">", "!mutantLess(%d, "},
	token.ADD: {"-", "mutantAdd(%d, "}, token.SUB: {"+", "mutantSub(%d, "},
	token.MUL: {"/", "mutantMul(%d, "}, token.QUO: {"*", "mutantDiv(%d, "},
	token.AND: {"|", "mutantAnd(%d, "}, token.OR: {"&", "mutantOr(%d, "},
	token.XOR: {"&", "mutantXor(%d, "}, token.AND_NOT: {"&", "mutantAndNot(%d, "},
}

// binary adds a mutant with another operator.
func (f *finder) binary(e *ast.BinaryExpr) {
	operator, ok := operators[e.Op]
	if !ok {
		return
	}
	if t, ok := f.info.TypeOf(e.X).Underlying().(*types.Basic); !ok || t.Info()&types.IsNumeric == 0 {
		return
	}
	f.number++
	f.add(e.OpPos, e.OpPos+token.Pos(len(e.Op.String())), operator.mutated).number = f.number
	f.insert(e.Pos(), 0, false, f.numbered(operator.function))
	f.insert(e.OpPos, len(e.Op.String()), false, ",")
	f.insert(e.End(), 0, true, ")")
}

// literals adds mutants of a constant expression with another number or text.
func (f *finder) literals(e ast.Expr) {
	name, ok := f.typeName(f.info.TypeOf(e))
	ast.Inspect(e, func(node ast.Node) bool {
		lit, isLit := node.(*ast.BasicLit)
		switch _, isCall := node.(*ast.CallExpr); {
		case !ok || isCall || f.function == "Error":
			return false
		case isLit && lit.Kind == token.STRING:
			f.replace(lit, literalMutant(lit), "mutantString["+name+"](%d, ", ")")
		case isLit && lit.Kind != token.FLOAT:
			f.replace(lit, literalMutant(lit), "mutantInt["+name+"](%d, ", ")")
		}
		return true
	})
}
