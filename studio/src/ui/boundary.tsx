import { Component, type ReactNode } from "react";
import { useTexts } from "../i18n";

/** A view that fails harms only itself: the rest of the studio goes on. */
export class Boundary extends Component<{ readonly children: ReactNode }, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };

  static getDerivedStateFromError(error: Error): { error: Error } {
    return { error };
  }

  override render(): ReactNode {
    const { error } = this.state;
    if (error === null) return this.props.children;
    // A new version of the studio has other files: only the whole page loads them.
    return <Failed error={error} retry={() => location.reload()} />;
  }
}

function Failed(props: { readonly error: Error; readonly retry: () => void }): ReactNode {
  const t = useTexts();
  return (
    <div role="alert" className="failed">
      <h1>{t.app.failed}</h1>
      <p>{props.error.message}</p>
      <button type="button" onClick={props.retry}>
        {t.app.reload}
      </button>
    </div>
  );
}
