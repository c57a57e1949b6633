// SPDX-License-Identifier: Apache-2.0

// What the schema generator makes dashboard.schema.json of: Grafana's own types of a dashboard, with the panels and the query that
// ours uses spelled out. Options of panels have defaults, and may be absent.
import * as common from '@grafana/schema';
import * as raw from '@grafana/schema/dist/types/raw/dashboard/x/types.gen';
import * as stat from '@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/types.gen';
import * as series from '@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/types.gen';

type Defaulted<T> = { [P in keyof T]?: T[P] extends object ? Defaulted<T[P]> : T[P] };

/** The query of the Prometheus data source: it is typed in Grafana's own package of it. */
interface Query {
  refId: string;
  datasource?: raw.DataSourceRef;
  expr: string;
  legendFormat?: string;
  format?: 'time_series' | 'table' | 'heatmap';
  instant?: boolean;
  range?: boolean;
  interval?: string;
  hide?: boolean;
}

interface Fields<C> extends Omit<raw.FieldConfigSource, 'defaults'> {
  defaults: Omit<raw.FieldConfig, 'custom'> & { custom?: C };
}

interface Shown<Type extends string, Options, Custom>
  extends Omit<raw.Panel, 'type' | 'options' | 'targets' | 'fieldConfig'> {
  type: Type;
  options?: Options;
  targets: Query[];
  fieldConfig?: Fields<Custom>;
}

export interface Board extends Omit<raw.Dashboard, 'panels'> {
  panels: (
    | Shown<'stat', Defaulted<stat.Options>, Record<string, never>>
    | Shown<'timeseries', Defaulted<series.Options>, Defaulted<common.GraphFieldConfig>>
    | raw.RowPanel
  )[];
}
