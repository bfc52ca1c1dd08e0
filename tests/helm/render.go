// Renders a Helm chart's templates with Go's own template engine, as helm does, for charts that use no more
// than the functions below. Usage: go run render.go CHART VALUES.json; prints the documents.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"text/template"
)

func toJSON(value any) (string, error) {
	encoded, err := json.Marshal(value)
	return string(encoded), err
}

func orDefault(fallback, given any) any {
	if given == nil || given == "" {
		return fallback
	}
	return given
}

func main() {
	encoded, err := os.ReadFile(os.Args[2])
	check(err)
	var data map[string]any
	check(json.Unmarshal(encoded, &data))
	functions := template.FuncMap{"toJson": toJSON, "quote": func(s string) string { return fmt.Sprintf("%q", s) }, "default": orDefault}
	paths, err := filepath.Glob(filepath.Join(os.Args[1], "templates", "*.yaml"))
	check(err)
	sort.Strings(paths)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(err)
		parsed, err := template.New(path).Option("missingkey=error").Funcs(functions).Parse(string(text))
		check(err)
		fmt.Println("\n---")
		check(parsed.Execute(os.Stdout, data))
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
