"""What every room needs: errors, labels, paths, quantities, manifests, progress and drawing."""
