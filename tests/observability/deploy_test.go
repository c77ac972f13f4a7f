package observability

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

const deploy = "../../deploy/"

// exportedNames returns the labels of each instrument of docs/observability.md, with the values of
// the labels. The key of an instrument is the name that OpenTelemetry's Prometheus exporter gives
// to its series.
func exportedNames(t *testing.T) map[string]map[string][]string {
	t.Helper()
	names := map[string]map[string][]string{}
	for name, d := range page(t) {
		name = strings.ReplaceAll(name, ".", "_")
		switch d.unit {
		case "s":
			name += "_seconds"
		case "By":
			name += "_bytes"
		}
		labels := map[string][]string{}
		if d.key != "" {
			labels[strings.ReplaceAll(d.key, ".", "_")] = d.values
		}
		switch d.kind {
		case "counter":
			names[name+"_total"] = labels
		case "histogram":
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				names[name+suffix] = labels
			}
		default:
			names[name] = labels
		}
	}
	return names
}

var (
	selector = regexp.MustCompile(`\b(once_[a-z_]+)\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)=~?"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|without) \(([^)]*)\)`)
)

// checkExpression reports names of metrics, labels and values that do not exist.
func checkExpression(t *testing.T, where, expression string, exported map[string]map[string][]string) {
	t.Helper()
	used := map[string][]string{}
	for _, s := range selector.FindAllStringSubmatch(grouping.ReplaceAllString(expression, ""), -1) {
		labels, ok := exported[s[1]]
		if !ok {
			t.Errorf("%s uses %s, which no instrument has", where, s[1])
			continue
		}
		maps.Copy(used, labels)
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			if m[1] == "job" {
				continue
			}
			for value := range strings.SplitSeq(m[2], "|") {
				if !slices.Contains(labels[m[1]], value) {
					t.Errorf("%s selects %s=%q of %s, which has no such series", where, m[1], value, s[1])
				}
			}
		}
	}
	if len(selector.FindAllString(expression, -1)) == 0 {
		t.Errorf("%s uses no metric: %s", where, expression)
	}
	for _, g := range grouping.FindAllStringSubmatch(expression, -1) {
		for label := range strings.SplitSeq(g[1], ",") {
			label = strings.TrimSpace(label)
			if _, ok := used[label]; !ok && !slices.Contains([]string{"job", "instance", "le"}, label) {
				t.Errorf("%s groups by %s, which its metrics do not have", where, label)
			}
		}
	}
}

var (
	alertRule = regexp.MustCompile(`(?m)^ +- (?:alert|record): (\S+)\n +expr: (.+)$`)
	runbook   = regexp.MustCompile(`(?m)^ +runbook_url: \S+/docs/runbook\.md#(\S+)$`)
)

func text(t *testing.T, path string) string {
	t.Helper()
	content := kit.ReadFile(t, path)
	return string(content)
}

// Each alert uses metrics that exist, and has a section in the runbook. The runbook has no section
// for an alert that does not exist. Each alert has a test in which it fires, and a test in which it
// does not fire.
func TestAlertsUseMetricsThatExist(t *testing.T) {
	exported := exportedNames(t)
	rules, cases := text(t, deploy+"prometheus/rules.yaml"), text(t, deploy+"prometheus/rules_test.yaml")
	book := text(t, "../../docs/runbook.md")
	found := alertRule.FindAllStringSubmatch(rules, -1)
	if n := strings.Count(rules, "expr:"); len(found) != n || n < 20 {
		t.Fatalf("%d rules, %d of them can be read", n, len(found))
	}
	links := runbook.FindAllStringSubmatch(rules, -1)
	alerts := 0
	for _, rule := range found {
		name := rule[1]
		checkExpression(t, name, rule[2], exported)
		if strings.Contains(name, ":") {
			continue // a record
		}
		if want := strings.ToLower(name); alerts >= len(links) || links[alerts][1] != want {
			t.Errorf("the runbook_url of %s does not end with #%s", name, want)
		}
		alerts++
		if !strings.Contains(book, "\n## "+name+"\n") {
			t.Errorf("docs/runbook.md has no section %s", name)
		}
		for _, expected := range []string{" fires", " is quiet"} {
			if strings.Count(cases, "- name: "+name+expected+"\n") != 1 {
				t.Errorf("rules_test.yaml has no case %q", name+expected)
			}
		}
	}
	if sections := strings.Count(book, "\n## Once"); sections != alerts {
		t.Errorf("the runbook has %d sections, for %d alerts", sections, alerts)
	}
}

// Each panel of a dashboard uses metrics that exist.
func TestDashboardsUseMetricsThatExist(t *testing.T) {
	exported := exportedNames(t)
	files, err := filepath.Glob(deploy + "grafana/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("dashboards %v, %v", files, err)
	}
	for _, file := range files {
		var dashboard struct {
			Panels []struct {
				Title   string `json:"title"`
				Type    string `json:"type"`
				Targets []struct {
					Expr string `json:"expr"`
				} `json:"targets"`
			} `json:"panels"`
		}
		kit.OK(t, json.Unmarshal([]byte(text(t, file)), &dashboard))
		for _, panel := range dashboard.Panels {
			if panel.Type != "row" && len(panel.Targets) == 0 {
				t.Errorf("the panel %q has no expression", panel.Title)
			}
			for _, target := range panel.Targets {
				checkExpression(t, "the panel "+panel.Title, target.Expr, exported)
			}
		}
	}
}

var scalerQuery = regexp.MustCompile(`(?m)^ +query: (.+)$`)

// Each query of the autoscaler's example uses metrics that exist.
func TestAutoscalerUsesMetricsThatExist(t *testing.T) {
	exported := exportedNames(t)
	scaler := text(t, deploy+"keda/scaledobject.yaml")
	queries := scalerQuery.FindAllStringSubmatch(scaler, -1)
	if n := strings.Count(scaler, "type: prometheus"); n == 0 || len(queries) != n {
		t.Fatalf("%d triggers, %d queries can be read", n, len(queries))
	}
	for _, query := range queries {
		checkExpression(t, "the autoscaler", query[1], exported)
	}
}

// promtool returns the path of Prometheus's promtool. This is the path in PROMTOOL if it is set.
// Otherwise promtool looks in PATH, and then in the directory to which scripts/deps.sh unpacks it.
func promtool(t *testing.T) string {
	t.Helper()
	paths := []string{"promtool"}
	if path := os.Getenv("PROMTOOL"); path != "" {
		paths = []string{path}
	} else if cache, err := os.UserCacheDir(); err == nil {
		paths = append(paths, filepath.Join(cache, "watermill-once", "prometheus", "usr", "bin", "promtool"))
	}
	for _, path := range paths {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	kit.WithoutOptional(t, "PROMTOOL", errors.New("promtool is not installed"))
	return ""
}

// Prometheus itself reads the rules, and runs their tests.
func TestAlertsFire(t *testing.T) {
	kit.Long(t)
	tool := promtool(t)
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		command := exec.CommandContext(t.Context(), tool, args...)
		command.Dir = deploy + "prometheus"
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, output)
		}
	}
}
