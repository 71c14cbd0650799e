package main

import (
	"bytes"
	"cmp"
	"encoding/json"
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

// A mutant is one small change of a package: the text from start to end is
// replaced.
type mutant struct {
	number       int // of its switch; 0 if it has none, and needs a build of its own
	pkg          *pkg
	file         string // from the top of the repository, as in a source
	line, column int
	function     string
	source       []byte // of the file
	start, end   int
	replacement  string

	killedBy string // "" if it has survived so far
}

// change describes what a mutant does to its lines.
func (m *mutant) change() string {
	return m.lines(string(m.source[m.start:m.end])) + " → " + cmp.Or(m.lines(m.replacement), "left out")
}

// key identifies a mutant even if its lines move.
func (m *mutant) key() string { return m.file + ": " + m.function + ": " + m.change() }

// lines returns the lines of the mutant, joined, with this text in place of what it replaces.
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

// mutated returns the file with the mutation.
func (m *mutant) mutated() []byte {
	return slices.Concat(m.source[:m.start], []byte(m.replacement), m.source[m.end:])
}

// A pkg is the package at the top of the repository, or one below internal/.
type pkg struct {
	path     string // to import it
	name     string
	folder   string   // from the top of the repository
	files    []string // without those of its tests, from the top of the repository
	sources  []*source
	hasTests bool
	binary   string          // of its tests, with the mutants of all packages
	needs    map[string]bool // the paths of what its tests import, directly or indirectly
}

// A source is one file of a package, with all its mutants behind switches.
type source struct {
	name     string // from the top of the repository
	text     []byte
	inserts  []insert
	packages map[string]string // the names of its imports, by path
}

// An insert is text that is inserted, or that replaces an operator.
type insert struct {
	at, length int
	closing    bool // it closes what ends here
	text       string
}

// switched returns the file with the inserts. At the same offset, closing inserts come
// before opening ones, the inner before the outer.
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
	for i := 0; i < len(inserts); { // reverses closing inserts: they are in the order of their opening ones
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

// findMutants parses and checks the packages.
func findMutants(packages []*pkg) ([]*mutant, error) {
	lookUp, err := exports(packages)
	if err != nil {
		return nil, err
	}
	f := &finder{files: token.NewFileSet(), info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}}
	config := types.Config{Importer: importer.ForCompiler(f.files, "gc", lookUp)}
	for _, p := range packages {
		if err := f.search(p, config); err != nil {
			return nil, err
		}
	}
	return f.mutants, nil
}

// listPackages returns the package at the top of the repository and those below internal/. A
// package may have only tests.
func listPackages() (packages []*pkg, err error) {
	top, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	out, err := goList("-json=ImportPath,Name,Dir,GoFiles,TestGoFiles,XTestGoFiles", "./...")
	if err != nil {
		return nil, err
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var listed struct {
			ImportPath, Name, Dir              string
			GoFiles, TestGoFiles, XTestGoFiles []string
		}
		if err := decoder.Decode(&listed); err == io.EOF {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		folder, err := filepath.Rel(top, listed.Dir)
		if err != nil {
			return nil, err
		}
		if folder != "." && !strings.HasPrefix(folder, "internal"+string(filepath.Separator)) {
			continue
		}
		p := &pkg{path: listed.ImportPath, name: listed.Name, folder: folder, hasTests: len(listed.TestGoFiles)+len(listed.XTestGoFiles) > 0}
		for _, name := range listed.GoFiles {
			p.files = append(p.files, filepath.Join(folder, name))
		}
		if p.needs, err = needed(p); err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
}

// needed returns the packages that the tests of a package import, directly or indirectly.
func needed(p *pkg) (map[string]bool, error) {
	out, err := goList("-deps", "-test", p.path)
	if err != nil {
		return nil, err
	}
	needs := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		path, _, _ := strings.Cut(strings.TrimSpace(line), " ") // a space precedes the test for which a package is compiled
		needs[path] = true
	}
	return needs, nil
}

func goList(arguments ...string) ([]byte, error) {
	list := exec.Command("go", append([]string{"list"}, arguments...)...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	return out, nil
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

// exports returns a lookup of the compiler's export data of what the packages import.
func exports(packages []*pkg) (importer.Lookup, error) {
	arguments := []string{"-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}
	for _, p := range packages {
		arguments = append(arguments, p.path)
	}
	out, err := goList(arguments...)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		files[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }, nil
}

// A finder walks the syntax trees of the packages. Every mutant with a switch gets inserts
// around its code.
type finder struct {
	files   *token.FileSet
	info    *types.Info
	mutants []*mutant
	number  int

	pkg      *pkg
	types    *types.Package
	source   *source
	function string
	results  []string // the types of the current function's results
}

// search finds the mutants of one package.
func (f *finder) search(p *pkg, config types.Config) (err error) {
	var parsed []*ast.File
	for _, name := range p.files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(f.files, name, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		parsed = append(parsed, file)
		p.sources = append(p.sources, &source{name: name, text: text, packages: imports(file)})
	}
	f.pkg = p
	if f.types, err = config.Check(p.path, f.files, parsed, f.info); err != nil {
		return err
	}
	for i, file := range parsed {
		f.source = p.sources[i]
		f.file(file)
	}
	return nil
}

func (f *finder) offset(at token.Pos) int { return f.files.Position(at).Offset }

func (f *finder) text(node ast.Node) string {
	return string(f.source.text[f.offset(node.Pos()):f.offset(node.End())])
}

// add adds a mutant that replaces the code between two positions.
func (f *finder) add(from, to token.Pos, replacement string) (m *mutant) {
	at := f.files.Position(from)
	m = &mutant{pkg: f.pkg, file: f.source.name, line: at.Line, column: at.Column, function: f.function,
		source: f.source.text, start: at.Offset, end: f.offset(to), replacement: replacement}
	f.mutants = append(f.mutants, m)
	return m
}

// replace adds a mutant with a switch: before and after are inserted around the node, where
// %d is the number of the switch.
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

// walk adds the mutants of a node and of everything in it, the outer ones first.
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
			if len(n.Results) > 1 { // callers do not read a zero value beside an error or a false
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
			unread = append(unread, f.indexes(n)...)
		case *ast.BinaryExpr:
			f.binary(n)
		}
		return true
	})
}

// words reports whether a call only makes the text of an error. A test of the text would
// only repeat it.
func (f *finder) words(call *ast.CallExpr) bool {
	return slices.Contains([]string{"errors.New", "fmt.Errorf", "recovered", "panic"}, f.text(call.Fun))
}

// message returns the argument of a call that is the text of a log line.
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

// statements adds mutants that each omit one statement.
func (f *finder) statements(list []ast.Stmt) {
	for _, statement := range list {
		switch s := statement.(type) {
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); ok && f.text(call.Fun) == "panic" {
				continue // no return may follow
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
	if len(s.Results) == 1 && len(f.results) > 1 { // the results of another function
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

// condition adds mutants of every part of a condition.
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

// fields adds mutants that each omit one field.
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

// indexes returns the keys of an array or a slice, which must be constants.
func (f *finder) indexes(lit *ast.CompositeLit) (keys []ast.Expr) {
	switch f.info.TypeOf(lit).Underlying().(type) {
	case *types.Array, *types.Slice:
		for _, element := range lit.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				keys = append(keys, pair.Key)
			}
		}
	}
	return keys
}

// typeName returns the name of a type in this file; ok is false if it has none.
func (f *finder) typeName(t types.Type) (name string, ok bool) {
	ok = true
	name = types.TypeString(types.Default(t), func(p *types.Package) string {
		if p == f.types {
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

// literals adds mutants of a constant expression with a different number or text.
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
