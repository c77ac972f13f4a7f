package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"
	"strings"
	"time"
)

// files contains the scripts, styles and pictures that the browser loads.
// assets/SHA256SUMS contains the checksums of the files that come from other projects.
//
//go:embed assets/*.js assets/*.css assets/*.svg
var files embed.FS

// asset is a file for the browser. Its version is the beginning of its checksum, and its
// URL contains the version. A changed file therefore has a new URL, so a browser may keep
// a file forever.
type asset struct {
	content   []byte
	mediaType string
	version   string
}

// assets contains the files for the browser, by name.
var assets = readAssets()

func readAssets() map[string]asset {
	all := map[string]asset{}
	entries, err := files.ReadDir("assets")
	if err != nil {
		panic(err) // cannot fail: the files are embedded in the program
	}
	for _, entry := range entries {
		content, err := files.ReadFile("assets/" + entry.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(content)
		mediaType := map[string]string{".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}[path.Ext(entry.Name())]
		all[entry.Name()] = asset{content, mediaType + "; charset=utf-8", hex.EncodeToString(sum[:6])}
	}
	return all
}

// assetLink returns the URL of a file.
func assetLink(name string) string { return name + "?v=" + assets[name].version }

func (a asset) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", a.mediaType)
	w.Header().Set("Cache-Control", "no-cache")
	if strings.HasPrefix(r.URL.RawQuery, "v="+a.version) {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	w.Header().Set("ETag", `"`+a.version+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.content))
}
