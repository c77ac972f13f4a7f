package console_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/watermill-once/once/console"
)

// pages contains the pages that a test can open at any time, and the names of their
// pictures.
var pages = []struct{ name, path string }{
	{"overview", ""},
	{"days", "days"},
	{"outbox", "outbox"},
	{"message", "message?id=1"},
	{"dead", "dead"},
	{"letter", "letter?id=1"},
	{"sent", "sent"},
	{"copy", "copy?id=1"},
	{"quarantine", "quarantine"},
	{"group", "quarantine?consumer=payments"},
	{"entry", "entry?id=1"},
	{"entry-hex", "entry?id=1&view=hex"},
	{"entry-panic", "entry?id=2"},
	{"edit", "edit?id=1"},
	{"forwarders", "forwarders"},
	{"consumers", "consumers"},
	{"parked", "parked"},
	{"parked-message", "parked-message?id=17"},
	{"find", "life"},
	{"life", "life?message=order-1041&causes=1"},
	{"reconcile", "reconcile"},
	{"report", "report?id=1"},
	{"audit", "audit"},
	{"replays", "replays"},
	{"replay-stopped", "replay?id=1"},
	{"replay", "change?do=replay&consumer=payments"},
	{"cancel", "change?do=cancel&all=1"},
	{"run-parked", "change?do=run-parked&consumer=payments"},
	{"discard-dead", "change?do=discard-dead&all=1"},
	{"empty", "quarantine?topic=nothing"},
}

// otherPages are opened by other tests: the page payload only downloads a file, and the page job
// needs a running change.
var otherPages = []string{"payload", "job"}

// source returns a file of the console.
func source(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../console/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// routes returns the names of the console's pages that accept an HTTP method.
func routes(t *testing.T, method string) (names []string) {
	t.Helper()
	for _, found := range regexp.MustCompile(`(?m)^\t\t"([a-z-]*)":\s+\{(.*)\},$`).FindAllStringSubmatch(source(t, "console.go"), -1) {
		if strings.Contains(found[2], method+": c.") {
			names = append(names, found[1])
		}
	}
	if len(names) == 0 {
		t.Fatal("console.go has no routes: are they written in another way now?")
	}
	return names
}

// changes returns the actions of the console that change something.
func changes(t *testing.T) (all []console.Action) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "action.go", source(t, "action.go"), 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Action" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if action := console.Action(value); err == nil && action.Changes() {
				all = append(all, action)
			}
		}
		return true
	})
	if len(all) == 0 {
		t.Fatal("action.go has no actions: are they written in another way now?")
	}
	return all
}

// A new page, form or action of the console needs a test in the browser.
func TestEachPageAndActHasATest(t *testing.T) {
	for _, route := range routes(t, "get") {
		in := func(path string) bool { name, _, _ := strings.Cut(path, "?"); return name == route }
		if !slices.ContainsFunc(otherPages, in) && !slices.ContainsFunc(pages, func(p struct{ name, path string }) bool { return in(p.path) }) {
			t.Errorf("pages does not have the page %q", route)
		}
	}
	for _, action := range changes(t) {
		if acts[action] == nil {
			t.Errorf("acts does not have the action %q", action)
		}
	}
}
