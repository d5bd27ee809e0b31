package flatten

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/goflat/goflat"

// layers says which imports are kept out of which folders, and why. Files are only
// parsed, under all build tags, so this also holds for folders that do not build
// on a machine without CUDA or Python.
var layers = []struct {
	name    string
	applies func(folder string) bool
	refuses func(path string) bool
	why     string
}{
	{
		"flatten imports std and itself only", isIn("flatten"),
		func(path string) bool {
			return strings.Contains(strings.Split(path, "/")[0], ".") && !isIn(module+"/flatten")(path)
		},
		"it builds with CGO_ENABLED=0 and any Go program can use it",
	},
	{
		"flatten is safe Go", isIn("flatten"),
		anyOf("C", "unsafe", "runtime/cgo"),
		"plans run on memory that others own; a wrong offset must panic, not write",
	},
	{
		"cgo where C is the point", func(folder string) bool { return !isIn("gpu", "bridge", "dlpack", "examples/go/dlpack")(folder) },
		anyOf("C"),
		"the rest is tested without a C compiler",
	},
	{
		"CUDA in gpu only", func(folder string) bool { return !isIn("gpu", "examples")(folder) },
		isIn("gorgonia.org/cu"),
		"one package talks to the driver, which may be absent",
	},
	{
		"gpu does not know bridge", isIn("gpu"),
		isIn(module + "/bridge"),
		"Go programs use gpu without Python",
	},
	{
		"dlpack knows flatten only", isIn("dlpack"),
		func(path string) bool { return isIn(module)(path) && !isIn(module+"/flatten", module+"/dlpack")(path) },
		"programs without CUDA exchange tensors, too",
	},
	{
		"examples use the public packages", isIn("examples"),
		func(path string) bool {
			return isIn(module)(path) && !anyOf(module+"/flatten", module+"/gpu", module+"/dlpack")(path)
		},
		"they show what a user can write",
	},
}

// isIn reports whether a slash path is one of roots or below it.
func isIn(roots ...string) func(string) bool {
	return func(path string) bool {
		for _, root := range roots {
			if path == root || strings.HasPrefix(path, root+"/") {
				return true
			}
		}
		return false
	}
}

func anyOf(paths ...string) func(string) bool {
	return func(path string) bool {
		for _, p := range paths {
			if p == path {
				return true
			}
		}
		return false
	}
}

// A folder is the parsed Go files of a package, without tests.
type folder struct {
	path  string // from the module's root, with slashes
	files []*ast.File
}

// folders parses every Go file of the module that is not a test.
func folders(t *testing.T) map[string]*folder {
	t.Helper()
	all := map[string]*folder{}
	root, fset := "..", token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || anyOf("testdata", "build", "dist")(name)):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		key := filepath.ToSlash(rel)
		if all[key] == nil {
			all[key] = &folder{path: key}
		}
		all[key].files = append(all[key].files, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestLayers(t *testing.T) {
	all := folders(t)
	for _, layer := range layers {
		t.Run(layer.name, func(t *testing.T) {
			for path, f := range all {
				if !layer.applies(path) {
					continue
				}
				for _, file := range f.files {
					for _, spec := range file.Imports {
						if imported := strings.Trim(spec.Path.Value, `"`); layer.refuses(imported) {
							t.Errorf("%s imports %s; it must not: %s", path, imported, layer.why)
						}
					}
				}
			}
		})
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	for path, f := range folders(t) {
		commented := false
		for _, file := range f.files {
			commented = commented || file.Doc != nil
		}
		if !commented {
			t.Errorf("%s: no file has a package comment", path)
		}
	}
}

// Functions and methods that fmt and errors call for the user.
var needNoExample = anyOf("Error", "Is", "String")

func TestEveryExportedFunctionHasAnExample(t *testing.T) {
	fset := token.NewFileSet()
	examples := map[string]bool{}
	file, err := parser.ParseFile(fset, "example_test.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range doc.Examples(file) {
		examples[e.Name] = true
		if e.Output == "" {
			t.Errorf("Example%s does not say what it prints", e.Name)
		}
	}
	for _, file := range folders(t)["flatten"].files {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if name := exampleName(f, ok); name != "" && !examples[name] {
				t.Errorf("no Example%s", name)
			}
		}
	}
}

// exampleName is the name of the example that a function should have: F or T_M,
// or "" for none.
func exampleName(f *ast.FuncDecl, ok bool) string {
	if !ok || !f.Name.IsExported() || needNoExample(f.Name.Name) {
		return ""
	}
	if f.Recv == nil {
		return f.Name.Name
	}
	receiver := f.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	name, ok := receiver.(*ast.Ident)
	if !ok || !name.IsExported() {
		return ""
	}
	return name.Name + "_" + f.Name.Name
}
