package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// box is all a container needs to run: what, where, and which folders it sees.
type box struct {
	Command []string
	Env     []string
	Dir     string
	Root    string
	Message string // file behind the termination message
	Mounts  []mount
}

type mount struct {
	From, To string
	ReadOnly bool
}

// box prepares the folders of a container.
func (p *pod) box(ctx context.Context, container core.Container, folder string) (*box, error) {
	object := p.current()
	b := &box{Root: filepath.Join(folder, "root"), Message: filepath.Join(folder, "message"), Dir: container.WorkingDir}
	if err := os.MkdirAll(b.Root, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(b.Message, nil, 0o666); err != nil {
		return nil, err
	}
	env, err := p.environment(ctx, container)
	if err != nil {
		return nil, err
	}
	for _, word := range append(append([]string{}, container.Command...), container.Args...) {
		b.Command = append(b.Command, expand(word, env))
	}
	if len(container.Command) == 0 {
		return nil, fmt.Errorf("the container %s has no command, and its image is not looked at", container.Name)
	}
	names := make([]string, 0, len(env))
	for name := range env {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		b.Env = append(b.Env, name+"="+env[name])
	}
	for _, each := range container.VolumeMounts {
		from, err := p.source(ctx, each.Name)
		if err != nil {
			return nil, err
		}
		if each.SubPath != "" {
			from = filepath.Join(from, filepath.Clean("/"+each.SubPath))
			if _, err := os.Stat(from); err != nil {
				if err := os.MkdirAll(from, 0o777); err != nil {
					return nil, err
				}
			}
		}
		b.Mounts = append(b.Mounts, mount{From: from, To: each.MountPath, ReadOnly: each.ReadOnly})
	}
	b.Mounts = append(b.Mounts, mount{From: p.node.programs, To: "/ko-app", ReadOnly: true})
	path := container.TerminationMessagePath
	if path == "" {
		path = core.TerminationMessagePathDefault
	}
	b.Mounts = append(b.Mounts, mount{From: b.Message, To: path})
	_ = object
	// Outer folders first, or they would hide the inner ones.
	sort.SliceStable(b.Mounts, func(i, j int) bool { return len(b.Mounts[i].To) < len(b.Mounts[j].To) })
	return b, nil
}

func (p *pod) environment(ctx context.Context, container core.Container) (map[string]string, error) {
	object := p.current()
	client := p.node.client.CoreV1()
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME": object.Name}
	for _, from := range container.EnvFrom {
		if from.SecretRef != nil {
			secret, err := client.Secrets(object.Namespace).Get(ctx, from.SecretRef.Name, meta.GetOptions{})
			if err != nil && !isTrue(from.SecretRef.Optional) {
				return nil, err
			}
			for key, value := range secret.Data {
				env[from.Prefix+key] = string(value)
			}
		}
		if from.ConfigMapRef != nil {
			config, err := client.ConfigMaps(object.Namespace).Get(ctx, from.ConfigMapRef.Name, meta.GetOptions{})
			if err != nil && !isTrue(from.ConfigMapRef.Optional) {
				return nil, err
			}
			for key, value := range config.Data {
				env[from.Prefix+key] = value
			}
		}
	}
	for _, variable := range container.Env {
		value := expand(variable.Value, env)
		if from := variable.ValueFrom; from != nil {
			switch {
			case from.FieldRef != nil:
				value = fieldOf(object, from.FieldRef.FieldPath)
			case from.SecretKeyRef != nil:
				secret, err := client.Secrets(object.Namespace).Get(ctx, from.SecretKeyRef.Name, meta.GetOptions{})
				if err != nil {
					if isTrue(from.SecretKeyRef.Optional) {
						continue
					}
					return nil, err
				}
				value = string(secret.Data[from.SecretKeyRef.Key])
			case from.ConfigMapKeyRef != nil:
				config, err := client.ConfigMaps(object.Namespace).Get(ctx, from.ConfigMapKeyRef.Name, meta.GetOptions{})
				if err != nil {
					if isTrue(from.ConfigMapKeyRef.Optional) {
						continue
					}
					return nil, err
				}
				value = config.Data[from.ConfigMapKeyRef.Key]
			}
		}
		env[variable.Name] = value
	}
	return env, nil
}

// expand replaces $(NAME) by a known variable and $$ by $, as the kubelet does.
func expand(text string, env map[string]string) string {
	var out strings.Builder
	for at := 0; at < len(text); at++ {
		if text[at] != '$' || at+1 == len(text) {
			out.WriteByte(text[at])
			continue
		}
		switch text[at+1] {
		case '$':
			out.WriteByte('$')
			at++
		case '(':
			end := strings.IndexByte(text[at:], ')')
			if end < 0 {
				out.WriteString("$(")
				at++
				continue
			}
			name := text[at+2 : at+end]
			if value, known := env[name]; known {
				out.WriteString(value)
			} else {
				out.WriteString("$(" + name + ")")
			}
			at += end
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}

// What a container sees of the machine besides its own volumes.
var shared = []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr", "/etc", "/dev", "/proc", "/sys"}

// sandbox runs in the mount namespace of a container: it builds the root folder and becomes the command.
func sandbox() {
	log.SetFlags(0)
	var b box
	fatal(json.NewDecoder(os.Stdin).Decode(&b))
	fatal(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	fatal(syscall.Mount("tmpfs", b.Root, "tmpfs", 0, "mode=0755"))
	for _, path := range shared {
		info, err := os.Lstat(path)
		if err != nil {
			continue
		}
		target := filepath.Join(b.Root, path)
		if info.Mode()&os.ModeSymlink != 0 {
			to, err := os.Readlink(path)
			fatal(err)
			fatal(os.Symlink(to, target))
			continue
		}
		fatal(os.MkdirAll(target, 0o755))
		fatal(syscall.Mount(path, target, "", syscall.MS_BIND|syscall.MS_REC, ""))
	}
	for _, path := range []string{"/tmp", "/var/tmp", "/root", "/run"} {
		fatal(os.MkdirAll(filepath.Join(b.Root, path), 0o777))
	}
	for _, each := range b.Mounts {
		fatal(bind(b.Root, each))
	}
	fatal(syscall.Chroot(b.Root))
	dir := b.Dir
	if dir == "" {
		dir = "/"
	}
	fatal(os.MkdirAll(dir, 0o777))
	fatal(os.Chdir(dir))
	null, err := os.Open("/dev/null")
	fatal(err)
	fatal(syscall.Dup2(int(null.Fd()), 0))
	fatal(os.Setenv("PATH", valueOf(b.Env, "PATH")))
	program, err := exec.LookPath(b.Command[0])
	if err != nil {
		log.Print(err)
		os.Exit(127)
	}
	fatal(syscall.Exec(program, b.Command, b.Env))
}

func bind(root string, each mount) error {
	target := filepath.Join(root, each.To)
	info, err := os.Stat(each.From)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o777)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o777); err == nil {
		var file *os.File
		if file, err = os.OpenFile(target, os.O_CREATE, 0o666); err == nil {
			err = file.Close()
		}
	}
	if err == nil {
		err = syscall.Mount(each.From, target, "", syscall.MS_BIND|syscall.MS_REC, "")
	}
	if err == nil && each.ReadOnly {
		err = syscall.Mount("", target, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", each.From, each.To, err)
	}
	return nil
}

func valueOf(env []string, name string) string {
	for _, pair := range env {
		if value, found := strings.CutPrefix(pair, name+"="); found {
			return value
		}
	}
	return ""
}
