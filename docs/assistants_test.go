package docs

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

const llmsHead = `# watermill-once

> Go library: a transactional outbox, an inbox, retries and a quarantine for Watermill with PostgreSQL or SQLite and RabbitMQ. Each
> committed event is published, and each consumer applies each message once.

Start with ` + "`once.NewConsumer`" + ` and ` + "`outbox.InTx`" + `: see the README. Handlers write only through their transaction.
`

const agentsHead = `# For assistants

You change the code of watermill-once, or use it in a service. Read [README.md](README.md) first, and
[CONTRIBUTING.md](CONTRIBUTING.md) before you change anything: it has the commands, the map of the packages and the rules.

- ` + "`go vet`, `gofmt` and `go test -short ./PACKAGE -run NAME`" + ` are quick. ` + "`make test` and `make check`" + ` are for the end.
- Tests use real PostgreSQL and RabbitMQ. Never replace them with mocks, and never wait for a guessed time.
- A handler writes only through its ` + "`*sql.Tx`" + `. A consumer's name never changes. The order of the chain is poison, retry, dedup.
- Errors name the value and the remedy. Words are those of [the glossary](docs/glossary.md).
- Some files are written by tests with ` + "`-update`" + `; each says so.
`

const written = "\n<!-- go test ./docs -run TestAssistants -update writes this file from docs/README.md. -->\n"

var (
	part     = regexp.MustCompile(`(?m)^\*\*(\w+)\*\*$`)
	question = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)([^[]*)`)
)

// llms.txt and AGENTS.md have the questions of docs/README.md, as links from the root. With -update
// the test writes them.
func TestAssistantsGetTheQuestionsOfTheDocs(t *testing.T) {
	text, err := os.ReadFile("docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	var links strings.Builder
	parts := part.FindAllStringSubmatchIndex(page, -1)
	for i, at := range parts {
		end := len(page)
		if i+1 < len(parts) {
			end = parts[i+1][0]
		}
		fmt.Fprintf(&links, "\n## %s\n\n", page[at[2]:at[3]])
		for _, m := range question.FindAllStringSubmatch(page[at[1]:end], -1) {
			title := strings.Join(strings.Fields(m[1]), " ")
			fmt.Fprintf(&links, "- [%s](%s)\n", strings.ToUpper(title[:1])+strings.TrimSuffix(title[1:], "?"), path.Join("docs", m[2]))
		}
	}
	if n := strings.Count(links.String(), "\n- "); len(parts) < 4 || n < 40 {
		t.Fatalf("only %d parts with %d links were found in docs/README.md", len(parts), n)
	}
	for file, want := range map[string]string{"llms.txt": llmsHead + links.String(), "AGENTS.md": agentsHead + written + links.String()} {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s does not fit docs/README.md: run go test ./docs -run TestAssistants -update", file)
		}
	}
}
