#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes tools/promql/testdata/dashboard.schema.json, by which a test judges the dashboard: the types of Grafana's own package
# @grafana/schema (Apache-2.0) as a JSON schema. Needs npm and node, and is only needed to update to a newer Grafana.
source "$(dirname "$0")/lib.sh"

grafana=13.2.3 generator=2.4.0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp hack/dashboard.ts "$work"
cd "$work"
npm install --silent --no-audit --no-fund --ignore-scripts --no-save \
  "@grafana/schema@$grafana" "ts-json-schema-generator@$generator"
# The types of one panel are reached by their place in the package.
sed -i "s#'@grafana/schema/dist#'./node_modules/@grafana/schema/dist#" dashboard.ts
echo '{"compilerOptions": {"strict": true, "skipLibCheck": true, "moduleResolution": "bundler", "module": "esnext", "target": "es2022", "types": []}, "files": ["dashboard.ts"]}' >tsconfig.json
node_modules/.bin/ts-json-schema-generator --path dashboard.ts --type Board --tsconfig tsconfig.json -o schema.json
# Descriptions are dropped.
node -e '
  const keep = (name, value) => name === "description" && typeof value === "string" ? undefined : value
  const schema = JSON.parse(require("fs").readFileSync("schema.json"), keep)
  schema.$comment = "Made by hack/dashboard-schema.sh from @grafana/schema '"$grafana"' (Apache-2.0, Grafana Labs)."
  console.log(JSON.stringify(schema, null, 1))
' >"$OLDPWD/tools/promql/testdata/dashboard.schema.json"
