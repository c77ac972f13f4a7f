package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRecordReplacesTheRowOfItsVersions(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "docs", "contributing"), 0o700); err != nil {
		t.Fatal(err)
	}
	proof, readme := filepath.Join(root, "docs", "contributing", "proof.md"), filepath.Join(root, "README.md")
	for _, file := range []string{proof, readme} {
		if err := os.WriteFile(file, []byte("before"+begin+end+"after"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []row{
		{date: "2026-01-01", postgres: "18.5", rabbit: "4.3.5", tests: tally{passed: 7}},
		{date: "2026-01-02", postgres: "15.20", rabbit: "3.10.8"},
		{
			date: "2026-01-03", postgres: "18.6", rabbit: "4.3.6", slow: true, tests: tally{passed: 9, skipped: 1},
			classic: "lost=0", quorum: "doubled=0",
		},
	} {
		if err := r.record(root); err != nil {
			t.Fatal(err)
		}
	}
	want := "before" + begin + "\n\n" + header +
		"| 15.20 | 3.10.8 | 2026-01-02 | without the slow ones | 0 | 0 |  |  |\n" +
		"| 18.6 | 4.3.6 | 2026-01-03 | all | 9 | 1 | lost=0 | doubled=0 |\n\n" + end + "after"
	if got, err := os.ReadFile(proof); err != nil || string(got) != want {
		t.Errorf("docs/contributing/proof.md is %q (%v), want %q", got, err, want)
	}
	want = "before" + begin + "15.20 with 3.10.8, 18.6 with 4.3.6" + end + "after"
	if got, err := os.ReadFile(readme); err != nil || string(got) != want {
		t.Errorf("README.md is %q (%v), want %q", got, err, want)
	}
}

func TestRecordNeedsItsMarks(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(file, []byte("no marks"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := rewrite(file, strings.ToUpper); err == nil || !strings.Contains(err.Error(), begin) {
		t.Errorf("the error is %v, want one that names the mark", err)
	}
	for _, name := range []string{"docs/contributing/proof.md", "README.md"} { // the marks of the real pages
		content, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		if marks := []int{strings.Count(string(content), begin), strings.Count(string(content), end)}; !slices.Equal(marks, []int{1, 1}) {
			t.Errorf("%s contains the marks %v times, want once each", name, marks)
		}
	}
}

func TestFollowCountsTestsWithoutSubtestsAndShowsFailures(t *testing.T) {
	t.Parallel()
	events := `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"fine\n"}
{"Action":"pass","Package":"p","Test":"TestA/sub"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"broken\n"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"fail","Package":"p","Elapsed":2}
`
	var out strings.Builder
	got, err := follow(strings.NewReader(events), &out)
	if want := (tally{passed: 1, skipped: 1, failed: 1}); err != nil || got != want {
		t.Errorf("the tally is %v (%v), want %v", got, err, want)
	}
	if want := "broken\nfail\tp\t2s\n"; out.String() != want {
		t.Errorf("the output is %q, want %q", out.String(), want)
	}
}
