// One program for the parts of Tekton that the test bed runs, and for the node under them.
//
// The first word chooses the part: `controller` and `resolvers` are Tekton's own reconcilers,
// without the servers its own programs open on all addresses; `node` runs the pods.
package main

import (
	"fmt"
	"os"
)

var parts = map[string]func(){
	"controller": controllers,
	"resolvers":  resolvers,
	"node":       node,
	"sandbox":    sandbox,
}

func main() {
	if len(os.Args) < 2 || parts[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: tekton controller|resolvers|node [flags]")
		os.Exit(2)
	}
	part := os.Args[1]
	os.Args = append(os.Args[:1], os.Args[2:]...)
	parts[part]()
}
