package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func lockThread() { runtime.LockOSThread() }

// volumes makes the folder of each volume.
func (p *pod) volumes(ctx context.Context) error {
	object := p.current()
	for _, volume := range object.Spec.Volumes {
		folder := filepath.Join(p.folder, "volumes", volume.Name)
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return err
		}
		_ = os.Chmod(folder, 0o777)
		var err error
		switch {
		case volume.EmptyDir != nil || volume.HostPath != nil || volume.PersistentVolumeClaim != nil:
		case volume.DownwardAPI != nil:
			err = p.downward(folder, volume.DownwardAPI.Items)
		case volume.Secret != nil:
			err = p.secret(ctx, folder, volume.Secret.SecretName, volume.Secret.Items, isTrue(volume.Secret.Optional))
		case volume.ConfigMap != nil:
			err = p.configMap(ctx, folder, volume.ConfigMap.Name, volume.ConfigMap.Items, isTrue(volume.ConfigMap.Optional))
		case volume.Projected != nil:
			err = p.projected(ctx, folder, volume.Projected.Sources)
		default:
			err = fmt.Errorf("volume %s is of a kind that this node does not know", volume.Name)
		}
		if err != nil {
			return fmt.Errorf("volume %s: %w", volume.Name, err)
		}
	}
	return nil
}

// source is the folder behind a volume.
func (p *pod) source(ctx context.Context, name string) (string, error) {
	object := p.current()
	for _, volume := range object.Spec.Volumes {
		switch {
		case volume.Name != name:
		case volume.HostPath != nil:
			return volume.HostPath.Path, nil
		case volume.PersistentVolumeClaim != nil:
			claim, err := p.node.client.CoreV1().PersistentVolumeClaims(object.Namespace).Get(ctx, volume.PersistentVolumeClaim.ClaimName, meta.GetOptions{})
			if err != nil {
				return "", err
			}
			return filepath.Join(p.node.root, "claims", string(claim.UID)), nil
		default:
			return filepath.Join(p.folder, "volumes", name), nil
		}
	}
	return "", fmt.Errorf("there is no volume %s", name)
}

func (p *pod) downward(folder string, items []core.DownwardAPIVolumeFile) error {
	object := p.current()
	for _, item := range items {
		if item.FieldRef == nil {
			continue
		}
		if err := replace(filepath.Join(folder, item.Path), []byte(fieldOf(object, item.FieldRef.FieldPath))); err != nil {
			return err
		}
	}
	return nil
}

func (p *pod) secret(ctx context.Context, folder, name string, items []core.KeyToPath, optional bool) error {
	secret, err := p.node.client.CoreV1().Secrets(p.current().Namespace).Get(ctx, name, meta.GetOptions{})
	if errors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	return files(folder, secret.Data, items)
}

func (p *pod) configMap(ctx context.Context, folder, name string, items []core.KeyToPath, optional bool) error {
	config, err := p.node.client.CoreV1().ConfigMaps(p.current().Namespace).Get(ctx, name, meta.GetOptions{})
	if errors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	data := map[string][]byte{}
	for key, value := range config.Data {
		data[key] = []byte(value)
	}
	for key, value := range config.BinaryData {
		data[key] = value
	}
	return files(folder, data, items)
}

func (p *pod) projected(ctx context.Context, folder string, sources []core.VolumeProjection) error {
	object := p.current()
	for _, source := range sources {
		var err error
		switch {
		case source.DownwardAPI != nil:
			err = p.downward(folder, source.DownwardAPI.Items)
		case source.ConfigMap != nil:
			err = p.configMap(ctx, folder, source.ConfigMap.Name, source.ConfigMap.Items, isTrue(source.ConfigMap.Optional))
		case source.Secret != nil:
			err = p.secret(ctx, folder, source.Secret.Name, source.Secret.Items, isTrue(source.Secret.Optional))
		case source.ServiceAccountToken != nil:
			request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{
				ExpirationSeconds: source.ServiceAccountToken.ExpirationSeconds,
				BoundObjectRef:    &authentication.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: object.Name, UID: object.UID},
			}}
			if source.ServiceAccountToken.Audience != "" {
				request.Spec.Audiences = []string{source.ServiceAccountToken.Audience}
			}
			request, err = p.node.client.CoreV1().ServiceAccounts(object.Namespace).CreateToken(ctx, object.Spec.ServiceAccountName, request, meta.CreateOptions{})
			if err == nil {
				err = replace(filepath.Join(folder, source.ServiceAccountToken.Path), []byte(request.Status.Token))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func files(folder string, data map[string][]byte, items []core.KeyToPath) error {
	if len(items) == 0 {
		for key := range data {
			items = append(items, core.KeyToPath{Key: key, Path: key})
		}
	}
	for _, item := range items {
		if value, there := data[item.Key]; there {
			if err := replace(filepath.Join(folder, item.Path), value); err != nil {
				return err
			}
		}
	}
	return nil
}

// replace swaps the whole file, so that no reader sees half of it.
func replace(file string, content []byte) error {
	if known, err := os.ReadFile(file); err == nil && string(known) == string(content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	next := file + ".next"
	if err := os.WriteFile(next, content, 0o644); err != nil {
		return err
	}
	return os.Rename(next, file)
}

func fieldOf(object *core.Pod, path string) string {
	switch path {
	case "metadata.name":
		return object.Name
	case "metadata.namespace":
		return object.Namespace
	case "metadata.uid":
		return string(object.UID)
	case "spec.nodeName":
		return object.Spec.NodeName
	case "spec.serviceAccountName":
		return object.Spec.ServiceAccountName
	case "status.podIP", "status.hostIP":
		return "127.0.0.1"
	}
	for prefix, values := range map[string]map[string]string{"metadata.annotations['": object.Annotations, "metadata.labels['": object.Labels} {
		if key, found := strings.CutPrefix(path, prefix); found {
			return values[strings.TrimSuffix(key, "']")]
		}
	}
	return ""
}

func isTrue(value *bool) bool { return value != nil && *value }
