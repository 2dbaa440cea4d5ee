package main

import (
	"bytes"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// serveLogs answers `kubectl logs` as a kubelet does.
func (n *nodeServer) serveLogs(port int, certificate, key string) {
	http.HandleFunc("/containerLogs/", func(w http.ResponseWriter, r *http.Request) {
		words := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		if len(words) != 4 {
			http.NotFound(w, r)
			return
		}
		p := n.find(words[1], words[2])
		if p == nil {
			http.NotFound(w, r)
			return
		}
		file := filepath.Join(p.folder, "containers", filepath.Base(words[3]), "log")
		text, err := os.ReadFile(file)
		if err != nil {
			http.Error(w, fmt.Sprintf("container %q in pod %q is waiting to start", words[3], words[2]), http.StatusBadRequest)
			return
		}
		if lines, err := strconv.Atoi(r.URL.Query().Get("tailLines")); err == nil {
			text = tail(text, lines)
		}
		if limit, err := strconv.Atoi(r.URL.Query().Get("limitBytes")); err == nil && limit < len(text) {
			text = text[:limit]
		}
		_, _ = w.Write(text)
		if follow, _ := strconv.ParseBool(r.URL.Query().Get("follow")); follow {
			p.follow(w, r, file, int64(len(text)))
		}
	})
	address := fmt.Sprintf("127.0.0.1:%d", port)
	log.Fatal(http.ListenAndServeTLS(address, certificate, key, nil))
}

// follow writes what is added to a log until its pod has ended.
func (p *pod) follow(w http.ResponseWriter, r *http.Request, file string, at int64) {
	for over := false; ; {
		text, err := os.ReadFile(file)
		if err != nil {
			return
		}
		if int64(len(text)) > at {
			if _, err := w.Write(text[at:]); err != nil {
				return
			}
			at = int64(len(text))
		}
		if flusher, ok := w.(http.Flusher); ok {
			flusher.Flush()
		}
		if over {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-p.ended:
			over = true
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func tail(text []byte, lines int) []byte {
	end := len(text)
	if end > 0 && text[end-1] == '\n' {
		end--
	}
	for ; lines > 0; lines-- {
		at := bytes.LastIndexByte(text[:end], '\n')
		if at < 0 {
			return text
		}
		end = at
	}
	return text[min(end+1, len(text)):]
}
